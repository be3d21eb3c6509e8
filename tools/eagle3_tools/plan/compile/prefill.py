"""python -m eagle3_tools.plan.compile.prefill FOLDER: compile published pairs' prefills, full size.

Contexts have 262,144 tokens, split over devices or not: the temporaries of a prompt chunk must not
grow with the context. FOLDER has config.json files (tests/oracles/published). Needs the extra
`rocm`, gcc and binutils, no GPU. Exit status 1 if a program does not compile or does not meet its
expectations.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_tools.aot import Program
from eagle3_tools.aot.collectives import collectives
from eagle3_tools.checks.check import Check
from eagle3_tools.plan.compile.full_size import full_size_program
from eagle3_tools.plan.compile.full_size_pairs import name_of
from eagle3_tools.plan.compile.report import (
    MIB,
    ProgramReport,
    pair_options,
    refusals,
    report_of,
    run_command,
    shared_problems,
)
from eagle3_tools.plan.options import PlanOptions
from eagle3_tools.plan.planner import make_plan, read_pair

CHUNK = 2048
"""Tokens of a chunk: enough to expand latents to keys and values, few relative to the context."""
PAIRS = (
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8 -dcp=8"),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8"),
    ("kimi-k2.5-w4a8", "kimi-k2.5-eagle3-mla", "--arch=gfx942 -tp=8 -dcp=8"),
)
"""Target, draft, and GPUs with parallelism."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("prefill", __doc__, PREFILLS, argv)


def prefill_options(folder: Path) -> Iterator[PlanOptions]:
    """Yield options as of eagle3-plan: contexts of 262,144 tokens."""
    for target, draft, layout in PAIRS:
        sizes = "--max-model-len=262144", "--max-num-seqs=16"
        yield pair_options(folder, target, draft, *layout.split(), *sizes)


def report_prefill(options: PlanOptions) -> ProgramReport:
    """Compile the lean prefill of one chunk. Raises the plan's errors, and RuntimeError if the
    compiler is not installed."""
    begin, pair = time.monotonic(), read_pair(options)
    memory = make_plan(options, pair).memory
    with refusals() as refused:
        prefill = full_size_program(options, pair, memory, ProgramKind.PREFILL, prefill_chunk=CHUNK)
        program = prefill.compile().program
    latents = max(pool.elements for pool in memory.pools)
    return report_of(
        options,
        program,
        [*refused, *prefill_problems(program, memory.gathered_bytes)],
        begin=begin,
        planned={"temporaries": memory.gathered_bytes},
        figures={"context": 2 * latents * options.max_model_len},
    )


def prefill_problems(program: Program, gathered_bytes: int) -> Iterator[str]:
    """Yield shared violations, and collectives larger than the part of the context that a chunk
    attends to at a time, or than a chunk's rows."""
    yield from shared_problems(program)
    for one in collectives(program.hlo):
        if one.kind != "all-reduce" and one.nbytes > gathered_bytes:
            yield f"{one.kind} of {one.dtype}{list(one.shape)}, {one.nbytes:,} B"


PREFILLS = Check[PlanOptions, ProgramReport](
    name=f"Prefill of {CHUNK:,} tokens at full size: MiB on one device beside weights and pools",
    build=lambda flags: prefill_options(flags.folder),
    run=report_prefill,
    label=name_of,
    heads={"pair": name_of},
    columns={
        "tempora-\nries": lambda found: f"{found.temporary_bytes / MIB:.0f}",
        "of these, context\nby the plan": lambda found: f"{found.planned['temporaries'] / MIB:.0f}",
        "a layer's\nwhole context": lambda found: f"{found.figures['context'] / MIB:.0f}",
        "largest\ncollective": lambda found: (
            f"{max((one.nbytes for one in found.collectives), default=0) / MIB:.0f}"
        ),
        "s": lambda found: f"{found.seconds:.0f}",
    },
)

if __name__ == "__main__":
    sys.exit(main())
