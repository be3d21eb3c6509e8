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
from dataclasses import replace
from pathlib import Path

from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.layers.moe import MOST_ROWS, MoE
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.target import Target
from eagle3_tools.aot.collectives import collectives
from eagle3_tools.aot.compile import devices
from eagle3_tools.aot.launches import launches
from eagle3_tools.checks.check import Check
from eagle3_tools.plan.compile.compiled_round import CompiledRound, abstract_round
from eagle3_tools.plan.compile.full_size import launches_per_layer
from eagle3_tools.plan.compile.report import (
    MIB,
    ProgramReport,
    refusals,
    report_of,
    run_command,
    shared_problems,
)
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.options import build_parser, read_options
from eagle3_tools.plan.planner import engine_config, make_plan, read_pair

REPLICAS, CHUNK = 8, 2048
PAIR = "kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla"
LAYOUT = "--arch=gfx950 -tp=8 --enable-expert-parallel --max-model-len=10240 --block-size=64"
SLOTS = 32
"""Slots of a replica: 256 requests on all of them."""
Job = tuple[Path, ProgramKind]


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("replicas", __doc__, PROGRAMS, argv)


def report_replicas(job: Job) -> ProgramReport:
    """Compile the lean program of this kind. Raises the plan's errors, and RuntimeError if the
    compiler is not installed."""
    begin, (folder, kind) = time.monotonic(), job
    files = [f"{folder / name}.config.json" for name in PAIR]
    argv = [f"--model={files[0]}", f"--draft={files[1]}", *LAYOUT.split(), "--language-model-only"]
    options = read_options(build_parser().parse_args([*argv, f"--max-num-seqs={SLOTS}"]))
    pair, gpu = read_pair(options), GPUS[options.gpu]
    memory, dtype = make_plan(options, pair).data_parallel[gpu.name].memory, options.kv_cache_dtype
    config = replace(
        engine_config(options, pair),
        num_pages=memory.pages(dtype),
        batch_buckets=(SLOTS,),
        data_parallel_size=REPLICAS,
        prefill_chunk=CHUNK,
    )
    found = devices(gpu.arch, REPLICAS)
    mesh = make_mesh(1, enable_expert_parallel=True, data_parallel_size=REPLICAS, devices=found)
    shard(pair.target, mesh)
    aux = pair.draft.config.aux_layer_ids if pair.draft else ()
    planned = memory.pair_weights + memory.state + memory.pages(dtype) * memory.page_bytes(dtype)
    with refusals() as refused:
        lowered = abstract_round(gpu.arch, pair.target, pair.draft, config, aux, mesh, kind=kind)
        compiled = lowered.compile()
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
    columns={
        "arguments\nGB": lambda found: f"{found.argument_bytes / 1e9:.1f}",
        "by the plan\nGB": lambda found: f"{found.planned['arguments'] / 1e9:.1f}",
        "temporaries\nMiB": lambda found: f"{found.temporary_bytes / MIB:.0f}",
        "launches a\nMoE layer": lambda found: (
            "" if found.per_layer is None else f"{found.per_layer:g}"
        ),
        "collectives": lambda found: f"{found.collectives.total()}",
        "s": lambda found: f"{found.seconds:.0f}",
    },
)

if __name__ == "__main__":
    sys.exit(main())
