"""Comparison of two records of compiled code: each case, and the rounds."""

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from eagle3_tools.kernel_model.gpus import BY_ARCH, ModelGpu
from eagle3_tools.kernel_model.record import CaseFacts, recorded
from eagle3_tools.plan.kernels.tables import all_rounds, round_name, widths_of
from serve.text_table import text_table

FIGURES = (
    *("launches", "in flight KiB", "loads B a lane", "registers", "LDS KiB"),
    *("steps", "us", "share"),
)
"""Figures of a case: one for each kernel in launch order, except for the first and the last two."""
NEW, GONE = "(new)", "(gone)"
"""Suffix of a case name that one of the records lacks."""


def case_changes(gpu: ModelGpu, before: Path, only: str = "") -> Iterator[tuple[str, ...]]:
    """Yield the name of each case with `only` in its name, and its figures as "before -> after", or
    one figure if nothing changed."""
    old, new = recorded(gpu.arch, before), recorded(gpu.arch)
    for name in sorted({*old, *new}):
        if only not in name:
            continue
        if name not in old:
            yield f"{name} {NEW}", *_figures(new[name], gpu)
        elif name not in new:
            yield f"{name} {GONE}", *_figures(old[name], gpu)
        else:
            both = zip(_figures(old[name], gpu), _figures(new[name], gpu), strict=True)
            yield name, *(_change(*pair) for pair in both)


def round_changes(before: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each round's name, milliseconds of its kernels alone and fraction of the floor; rounds
    that the older record lacks cases of count as unchanged."""
    old = {round_name(one): one.kernels for one in all_rounds(before)}
    for one in all_rounds():
        was, now = old.get(round_name(one), one.kernels), one.kernels
        yield (
            round_name(one).replace("\n", " "),
            _change(f"{was.seconds * 1e3:.1f}", f"{now.seconds * 1e3:.1f}"),
            _change(f"{was.share:.2f}", f"{now.share:.2f}"),
        )


def _figures(case: CaseFacts, gpu: ModelGpu) -> tuple[str, ...]:
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


_HEADINGS = {
    "in flight KiB": "in flight\nKiB",
    "loads B a lane": "loads\nB a lane",
    "registers": "regis-\nters",
    "LDS KiB": "LDS\nKiB",
}


def print_changes(console: Console, only: str, before: Path) -> None:
    """Print cases and rounds of both records. Raises FileNotFoundError without an older one."""
    archs = [arch for arch in BY_ARCH if recorded(arch, before)]
    if not archs:
        raise FileNotFoundError(
            f"{before} has no record: expected one of {', '.join(BY_ARCH)}.json"
        )
    console.print("Model, not measured: before -> after, one figure where nothing changed.")
    headings = ("case", *(_HEADINGS.get(figure, figure) for figure in FIGURES))
    for gpu in (BY_ARCH[arch] for arch in archs):
        if rows := list(case_changes(gpu, before, only)):
            table = text_table(f"Cases on {gpu.name}", headings, left=("case",))
            for row in rows:
                table.add_row(*row)
            console.print(table)
    title = "A round of k = 3 at 8,704 slots: ms of its kernels alone, and their share of the floor"
    table = text_table(title, ("", "ms", "share"), left=("",))
    for row in round_changes(before):
        table.add_row(*row)
    console.print(table)
