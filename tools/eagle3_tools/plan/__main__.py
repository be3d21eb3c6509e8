"""python -m eagle3_tools.plan: compile the round of Kimi-K2.5 at its real width, with few layers,
using XLA's ROCm compiler, and report a MoE layer's launches. Needs the extra `rocm`, gcc, binutils.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

from convert.command_line.parser import OneLineParser
from eagle3_tools.checks.check import Check, console_of, print_lines
from eagle3_tools.kernel_cases.case import AMD
from eagle3_tools.plan.compile.compiled_round import RoundShape
from eagle3_tools.plan.compile.layer_launches import BATCHES, GOAL, report_round
from eagle3_tools.plan.compile.report import ProgramReport, columns, seconds, whole
from eagle3_tools.plan.data.kimi_k25 import WeightScheme

LOOKUP_SCHEME: WeightScheme = "mxfp4"


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a program does not compile or does not meet its expectations."""
    flags = _parse(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    shapes = list(ROUNDS.build(flags))
    results = ROUNDS.results(shapes, flags.limit, flags.jobs)
    console = console_of()
    holds = ROUNDS.print(console, shapes, results)
    reports = [report for report in results if isinstance(report, ProgramReport)]
    print_lines(console, _added(reports))
    for report in reports if flags.list else ():
        print_lines(console, _layer(report))
    return 0 if holds else 1


def _parse(argv: Sequence[str] | None) -> Namespace:
    parser = OneLineParser(prog="python -P -m eagle3_tools.plan", description=__doc__)
    parser.add_argument("--arch", choices=AMD, action="append", help="default: both")
    parser.add_argument(
        "--scheme", choices=get_args(WeightScheme), action="append", help="default: all"
    )
    parser.add_argument("--batch", type=int, choices=BATCHES, action="append", help="default: both")
    parser.add_argument("--list", action="store_true", help="every launch of one MoE layer")
    parser.add_argument("--jobs", type=whole, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--limit", type=seconds, default=300.0, metavar="S", help="for one program")
    return parser.parse_args(argv)


def _shapes(flags: Namespace) -> Iterator[RoundShape]:
    for arch in flags.arch or AMD:
        for scheme in flags.scheme or get_args(WeightScheme):
            for batch in flags.batch or BATCHES:
                yield RoundShape(arch, scheme, moe_layers=3, batch=batch)
        yield RoundShape(arch, LOOKUP_SCHEME, moe_layers=3, batch=BATCHES[0], lookup=True)


def _drafts(shape: RoundShape) -> str:
    return "model, lookup" if shape.lookup else "model"


def _added(reports: Sequence[ProgramReport]) -> Iterator[str]:
    """Yield the launches that lookup adds to the round of the same weights and batch."""
    by_shape = {report.job: report.launches for report in reports}
    for shape, program in by_shape.items():
        without = by_shape.get(replace(shape, lookup=False))
        if shape.lookup and without is not None:
            yield f"{ROUNDS.label(shape)}: {program - without:+} launches by lookup"


ROUNDS = Check[RoundShape, ProgramReport](
    name="The round of Kimi-K2.5, 1 dense and 3 MoE layers, k = 3, one device",
    build=_shapes,
    run=report_round,
    reuse=True,
    label=lambda shape: f"{shape.arch} {shape.scheme} batch {shape.batch}, {_drafts(shape)}",
    heads={
        "arch": lambda shape: shape.arch,
        "weights": lambda shape: shape.scheme,
        "batch": lambda shape: f"{shape.batch}",
        "drafts": _drafts,
    },
    columns={
        f"launches a MoE layer (goal {GOAL})": lambda found: f"{found.per_layer:g}",
        **columns("launches\nin all"),
        "copies of weights": lambda found: f"{found.figures['copies']}",
        **columns("arguments\nGiB", "tempora-\nries MiB", "\ns"),
    },
)


def _layer(report: ProgramReport) -> Iterator[str]:
    yield f"\nOne MoE layer, {ROUNDS.label(report.job)}:"
    for number, launch in enumerate(report.layer, 1):
        times = "" if launch.times == 1 else f" x {launch.times or 'as the data say'}"
        yield f"{number:3} {launch.kind:10} {launch.name}{times} -> {launch.result}"
        yield f"               {launch.scope}"


if __name__ == "__main__":
    sys.exit(main())
