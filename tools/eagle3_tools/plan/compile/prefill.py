"""python -m eagle3_tools.plan.compile.prefill FOLDER: compile published pairs' prefills, full size.

Contexts have 262,144 tokens, split over devices or not: the temporaries of a prompt chunk must not
grow with the context. FOLDER has config.json files (tests/oracles/published). Needs the extra
`rocm`, gcc and binutils, no GPU. Exit status 1 if a program does not compile or does not meet its
expectations.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eagle3_tools.aot import Program
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.expectations import MIB, kernel_problems
from eagle3_tools.aot.workers import Failure, run_each
from eagle3_tools.plan.cli import FILE_WIDTH
from eagle3_tools.plan.compile.flags import read_flags
from eagle3_tools.plan.compile.full_size import full_size_prefill, refusals
from eagle3_tools.plan.compile.full_size_problems import MOST_TEMPORARY_BYTES
from eagle3_tools.plan.compile.full_size_table import LIMIT_S, failed, name_of
from eagle3_tools.plan.options import PlanOptions, build_parser, read_options
from eagle3_tools.plan.planner import make_plan, read_pair

CHUNK = 2048
"""Tokens of a chunk: enough to expand latents to keys and values, few relative to the context."""
PAIRS = (
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8 -dcp=8"),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8"),
    ("kimi-k2.5-w4a8", "kimi-k2.5-eagle3-mla", "--arch=gfx942 -tp=8 -dcp=8"),
)
"""Target, draft, and GPUs with parallelism."""


@dataclass(frozen=True)
class PrefillReport:
    """Report of a prefill. planned_bytes: temporaries by the plan, the part of the context that a
    chunk attends to at a time; context_bytes: the model's whole context on one device, in one
    layer."""

    options: PlanOptions
    temporary_bytes: int
    planned_bytes: int
    context_bytes: int
    collectives: Counter[Collective]
    failures: tuple[str, ...]
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    flags = read_flags("prefill", __doc__, LIMIT_S, argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    every = list(prefill_options(flags.folder))
    results = list(run_each(report_prefill, every, processes=1, limit_s=flags.limit))
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    return 0 if print_prefills(console, every, results) else 1


def prefill_options(folder: Path) -> Iterator[PlanOptions]:
    """Yield options as of eagle3-plan: contexts of 262,144 tokens, pages of 64, no images."""
    for target, draft, layout in PAIRS:
        argv = [f"--model={folder / target}.config.json", f"--draft={folder / draft}.config.json"]
        argv += [*layout.split(), "--max-model-len=262144", "--block-size=64"]
        argv += ["--language-model-only", "--max-num-seqs=16"]
        yield read_options(build_parser().parse_args(argv))


def report_prefill(options: PlanOptions) -> PrefillReport:
    """Compile the lean prefill of one chunk. Raises the plan's errors, and RuntimeError if the
    compiler is not installed."""
    begin = time.monotonic()
    memory = make_plan(options, read_pair(options)).memory
    with refusals() as refused:
        program = full_size_prefill(options, CHUNK).compile().program
    latents = max(pool.elements for pool in memory.pools)
    problems = [*refused, *prefill_problems(program, memory.gathered_bytes)]
    return PrefillReport(
        options,
        program.temporary_bytes,
        memory.gathered_bytes,
        2 * latents * options.max_model_len,
        Counter(collectives(program.hlo)),
        tuple(dict.fromkeys(problems)),
        round(time.monotonic() - begin, 1),
    )


def prefill_problems(program: Program, gathered_bytes: int) -> Iterator[str]:
    """Yield excessive temporaries, collectives larger than the gathered part or a chunk's rows, and
    kernels that spill."""
    if program.temporary_bytes >= MOST_TEMPORARY_BYTES:
        yield f"{program.temporary_bytes / MIB:.0f} MiB of temporaries"
    for one in collectives(program.hlo):
        if one.kind != "all-reduce" and one.nbytes > gathered_bytes:
            yield f"{one.kind} of {one.dtype}{list(one.shape)}, {one.nbytes:,} B"
    for kernel in program.kernels:
        yield from kernel_problems(kernel, program.arch)


def print_prefills(
    console: Console, every: Sequence[PlanOptions], results: Sequence[PrefillReport | Failure]
) -> bool:
    """Print a row for each prefill, then the failures; return whether there are none."""
    title = f"Prefill of {CHUNK:,} tokens at full size: MiB on one device beside weights and pools"
    shown = Table(title=title, title_justify="left")
    shown.add_column("pair", no_wrap=True)
    for heading in (
        *("tempora-\nries", "of these, context\nby the plan", "a layer's\nwhole context"),
        *("largest\ncollective", "s"),
    ):
        shown.add_column(heading, justify="right")
    for options, result in zip(every, results, strict=True):
        cells = ("FAILED",) if isinstance(result, Failure) else _cells(result)
        shown.add_row(name_of(options), *cells)
    console.print(shown)
    failures = list(failed(map(name_of, every), results))
    for line in failures:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not failures


def _cells(report: PrefillReport) -> tuple[str, ...]:
    largest = max((one.nbytes for one in report.collectives), default=0)
    sizes = report.temporary_bytes, report.planned_bytes, report.context_bytes, largest
    return (*(f"{nbytes / MIB:.0f}" for nbytes in sizes), f"{report.seconds:.0f}")


if __name__ == "__main__":
    sys.exit(main())
