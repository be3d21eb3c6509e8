"""Two records of compiled code side by side: each case, and the rounds."""

from collections.abc import Callable, Iterator
from pathlib import Path

from eagle3_tools.kernel_model.gpus import ModelGpu
from eagle3_tools.kernel_model.record import CaseFacts, recorded
from eagle3_tools.plan.kernels.tables import all_rounds, round_name, widths_of

FIGURES = (
    *("launches", "in flight KiB", "loads B a lane", "registers", "LDS KiB"),
    *("steps", "us", "share"),
)
"""Of a case: of each kernel in the order of their launches, but for the first and the last two."""
NEW, GONE = "(new)", "(gone)"
"""Behind the name of a case that one of the records has not."""


def case_changes(gpu: ModelGpu, before: Path, only: str = "") -> Iterator[tuple[str, ...]]:
    """Of each case with `only` in its name: the name, and its figures before -> after, one where
    nothing changed."""
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
    """Of each round: its name, milliseconds of its kernels alone, share of the floor; the same for
    rounds that the older record lacks cases of."""
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
