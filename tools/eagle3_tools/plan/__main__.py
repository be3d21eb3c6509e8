"""python -m eagle3_tools.plan: compile the round of Kimi-K2.5 at its real width, with few layers,
using XLA's ROCm compiler, and report a MoE layer's launches. Needs the extra `rocm`, gcc, binutils.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import get_args

from rich.console import Console
from rich.table import Table

from convert.command_line.parser import OneLineParser
from eagle3_tools.aot.workers import Failure, run_each
from eagle3_tools.plan.cli import FILE_WIDTH
from eagle3_tools.plan.compile.compiled_round import RoundShape
from eagle3_tools.plan.compile.flags import seconds, whole
from eagle3_tools.plan.compile.full_size_table import GIB, MIB, failed
from eagle3_tools.plan.compile.layer_launches import BATCHES, GOAL, RoundReport, report_round
from eagle3_tools.plan.data.kimi_k25 import WeightScheme
from pallas_kernels.case import AMD

_HEADINGS = (
    *(f"launches a MoE layer (goal {GOAL})", "whole round", "copies of weights"),
    *("arguments GiB", "temporaries MiB", "s"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a program does not compile or does not meet its expectations."""
    flags = _parse(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    shapes = [
        RoundShape(arch, scheme, moe_layers=3, batch=batch)
        for arch in flags.arch or AMD
        for scheme in flags.scheme or get_args(WeightScheme)
        for batch in flags.batch or BATCHES
    ]
    results = list(run_each(report_round, shapes, processes=flags.jobs, limit_s=flags.limit))
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    console.print(_table(shapes, results))
    reports = [result for result in results if isinstance(result, RoundReport)]
    for report in reports if flags.list else ():
        console.print("\n".join(_layer(report)), markup=False, highlight=False, soft_wrap=True)
    failures = list(failed(map(_name, shapes), results))
    console.print("\n".join(failures), markup=False, highlight=False, soft_wrap=True)
    return 1 if failures else 0


def _parse(argv: Sequence[str] | None) -> Namespace:
    parser = OneLineParser(prog="python -m eagle3_tools.plan", description=__doc__)
    parser.add_argument("--arch", choices=AMD, action="append", help="default: both")
    parser.add_argument(
        "--scheme", choices=get_args(WeightScheme), action="append", help="default: all"
    )
    parser.add_argument("--batch", type=int, choices=BATCHES, action="append", help="default: both")
    parser.add_argument("--list", action="store_true", help="every launch of one MoE layer")
    parser.add_argument("--jobs", type=whole, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--limit", type=seconds, default=300.0, metavar="S", help="for one program")
    return parser.parse_args(argv)


def _table(shapes: Sequence[RoundShape], results: Sequence[RoundReport | Failure]) -> Table:
    shown = Table(
        title="The round of Kimi-K2.5, 1 dense and 3 MoE layers, k = 3, one device",
        title_justify="left",
    )
    for heading in ("arch", "weights", "batch"):
        shown.add_column(heading)
    for heading in _HEADINGS:
        shown.add_column(heading, justify="right")
    for shape, result in zip(shapes, results, strict=True):
        cells = ("FAILED",) if isinstance(result, Failure) else _cells(result)
        shown.add_row(shape.arch, shape.scheme, f"{shape.batch}", *cells)
    return shown


def _cells(report: RoundReport) -> tuple[str, ...]:
    return (
        f"{report.per_layer}",
        f"{report.program}",
        f"{len(report.copies)}",
        f"{report.argument_bytes / GIB:.1f}",
        f"{report.temporary_bytes / MIB:.0f}",
        f"{report.seconds:.0f}",
    )


def _layer(report: RoundReport) -> Iterator[str]:
    yield f"\nOne MoE layer, {_name(report.shape)}:"
    for number, launch in enumerate(report.layer, 1):
        times = "" if launch.times == 1 else f" x {launch.times or 'as the data say'}"
        yield f"{number:3} {launch.kind:10} {launch.name}{times} -> {launch.result}"
        yield f"               {launch.scope}"


def _name(shape: RoundShape) -> str:
    return f"{shape.arch} {shape.scheme} batch {shape.batch}"


if __name__ == "__main__":
    sys.exit(main())
