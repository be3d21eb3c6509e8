"""python -m eagle3_tools.plan.compile.replicas FOLDER: compile data parallel attention, full size.

Compiles a round and a prefill of Kimi-K2.5 on eight replicas of one device. Replicas must exchange
only rows of routed experts and reports to the host, and copy no pool. FOLDER has config.json files
(tests/oracles/published). Needs the extra `rocm`, gcc and binutils, no GPU. Exit status 1 if a
program does not compile or does not meet its expectations.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.layers.moe import MOST_ROWS, MoE
from eagle3_jax.models.target import Target
from eagle3_tools.aot.collectives import collectives
from eagle3_tools.aot.launches import launches
from eagle3_tools.checks.check import Check
from eagle3_tools.plan.compile.compiled_round import CompiledRound
from eagle3_tools.plan.compile.full_size import full_size_program, launches_per_layer
from eagle3_tools.plan.compile.report import (
    ProgramReport,
    columns,
    pair_options,
    refusals,
    report_of,
    run_command,
    shared_problems,
)
from eagle3_tools.plan.planner import make_plan, read_pair

REPLICAS, CHUNK = 8, 2048
PAIR = "kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla"
LAYOUT = "--arch=gfx950 -tp=8 --enable-expert-parallel --max-model-len=10240"
SLOTS = 32
"""Slots of a replica: 256 requests on all of them."""
Job = tuple[Path, ProgramKind]


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("replicas", __doc__, PROGRAMS, argv)


def report_replicas(job: Job) -> ProgramReport:
    """Compile the lean program of this kind. Raises the plan's errors, and RuntimeError if the
    compiler is not installed."""
    begin, (folder, kind) = time.monotonic(), job
    options = pair_options(folder, *PAIR, *LAYOUT.split(), f"--max-num-seqs={SLOTS}")
    pair, dtype = read_pair(options), options.kv_cache_dtype
    memory = make_plan(options, pair).data_parallel[options.gpu].memory
    planned = memory.pair_weights + memory.state + memory.pages(dtype) * memory.page_bytes(dtype)
    with refusals() as refused:
        compiled = full_size_program(
            options, pair, memory, kind, REPLICAS, prefill_chunk=CHUNK
        ).compile()
    is_round, program = kind is ProgramKind.ROUND, compiled.program
    rows = SLOTS * (options.num_speculative_tokens + 1) if is_round else CHUNK
    return report_of(
        job,
        program,
        [*refused, *replica_problems(compiled, planned, pair.target, rows)],
        begin=begin,
        donated_bytes=compiled.state_bytes,
        planned={"arguments": planned},
        per_layer=launches_per_layer(launches(program.hlo), pair) if is_round else None,
    )


def replica_problems(
    compiled: CompiledRound, planned_bytes: int, target: Target, rows: int
) -> Iterator[str]:
    """Yield shared violations and unexpected collectives. rows: of a replica's layer."""
    program = compiled.program
    yield from shared_problems(program, donated_bytes=compiled.state_bytes, arguments=planned_bytes)
    pieces = -(-rows * REPLICAS // MOST_ROWS)
    hidden, routed = target.config.hidden_size, sum(isinstance(x.mlp, MoE) for x in target.layers)
    told = Counter((c.kind, c.shape) for c in collectives(program.hlo) if c.shape[-1] == hidden)
    expected = {
        ("all-gather", (REPLICAS * rows // pieces, hidden)): pieces * routed,
        ("all-to-all", (REPLICAS, rows // pieces, hidden)): pieces * routed,
    }
    if told != expected:
        yield f"{dict(told)} in place of {expected}"
    others = [c for c in collectives(program.hlo) if c.shape[-1] != hidden]
    if len(others) != 1 or others[0].dtype != "s32":
        yield f"{others} in place of one gather of reports"


PROGRAMS = Check[Job, ProgramReport](
    name=f"{PAIR[0]} + {PAIR[1]}, MI355X, {REPLICAS} replicas of {SLOTS} slots: on each device",
    build=lambda flags: [(flags.folder, ProgramKind.ROUND), (flags.folder, ProgramKind.PREFILL)],
    run=report_replicas,
    label=lambda job: f"{job[1]}",
    heads={"program": lambda job: f"{job[1]}"},
    columns=columns(
        *("arguments\nGiB", "of\nplan", "tempora-\nries MiB"),
        *("launches\na layer", "collec-\ntives", "\ns"),
    ),
)

if __name__ == "__main__":
    sys.exit(main())
