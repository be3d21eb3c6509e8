"""`eagle3-plan --kernels --before FOLDER`: two records of compiled code side by side."""

from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pallas_kernels.kernel_model.gpus import BY_ARCH, ModelGpu
from pallas_kernels.kernel_model.record import CaseFacts, recorded
from serve.plan.kernels.tables import all_rounds, round_name, widths_of
from serve.text_table import text_table

_FIGURES = (
    *("launches", "in flight\nKiB", "loads\nB a lane", "regis-\nters", "LDS\nKiB"),
    *("steps", "us", "share"),
)


def print_changes(console: Console, only: str, before: Path) -> None:
    """Cases in both records, and the rounds. Raises FileNotFoundError where there is no record."""
    console.print("Model, not measured: before -> after, one figure where nothing changed.")
    found = False
    for arch, gpu in BY_ARCH.items():
        old, new = recorded(arch, before), recorded(arch)
        found = found or bool(old)
        if both := {name: old[name] for name in new if name in old and only in name}:
            console.print(_cases(gpu, both, new))
    if not found:
        raise FileNotFoundError(
            f"{before} has no record: expected one of {', '.join(BY_ARCH)}.json"
        )
    console.print(_rounds(before))


def _cases(gpu: ModelGpu, old: Mapping[str, CaseFacts], new: Mapping[str, CaseFacts]) -> Table:
    table = text_table(f"Cases on {gpu.name}", ("case", *_FIGURES), left=("case",))
    for name, before in old.items():
        both = zip(_figures(before, gpu), _figures(new[name], gpu), strict=True)
        table.add_row(name, *(_change(*pair) for pair in both))
    return table


def _figures(case: CaseFacts, gpu: ModelGpu) -> tuple[str, ...]:
    """Those of the kernels in the order of their launches, then of the case."""
    kernels, found = case.kernels, case.predictions(gpu)
    return (
        f"{len(kernels)}",
        _each(lambda k: f"{found[k].in_flight / 1024:.0f}", case),
        _each(lambda k: widths_of(kernels[k]).replace(" ", ","), case),
        _each(lambda k: f"{kernels[k].registers}", case),
        _each(lambda k: f"{kernels[k].lds / 1024:.0f}", case),
        _each(lambda k: f"{found[k].steps:.0f}", case),
        f"{case.seconds(gpu) * 1e6:.1f}",
        f"{case.share(gpu):.2f}",
    )


def _each(figure: Callable[[int], str], case: CaseFacts) -> str:
    return " ".join(figure(kernel) or "-" for kernel in range(len(case.kernels)))


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _rounds(before: Path) -> Table:
    title = "A round of k = 3 at 8,704 slots: ms of its kernels alone, and their share of the floor"
    table = text_table(title, ("", "ms", "share"), left=("",))
    old = {round_name(one): one.kernels for one in all_rounds(before)}
    for one in all_rounds():
        was, now = old.get(round_name(one), one.kernels), one.kernels
        table.add_row(
            round_name(one).replace("\n", " "),
            _change(f"{was.seconds * 1e3:.1f}", f"{now.seconds * 1e3:.1f}"),
            _change(f"{was.share:.2f}", f"{now.share:.2f}"),
        )
    return table
