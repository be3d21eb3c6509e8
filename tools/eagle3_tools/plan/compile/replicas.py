"""python -m eagle3_tools.plan.compile.replicas FOLDER: compile data parallel attention, full size.

Compiles a round and a prefill of Kimi-K2.5 on eight replicas of one device. Replicas must exchange
only rows of routed experts and reports to the host, and copy no pool. FOLDER has config.json files
(tests/oracles/published). Needs the extra `rocm`, gcc and binutils, no GPU. Exit status 1 if a
program does not compile or does not meet its expectations.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.layers.moe import MOST_ROWS, MoE
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.target import Target
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.compile import devices
from eagle3_tools.aot.expectations import MIB, kernel_problems
from eagle3_tools.aot.launches import launches
from eagle3_tools.aot.workers import Failure, run_each
from eagle3_tools.plan.cli import FILE_WIDTH
from eagle3_tools.plan.compile.compiled_round import CompiledRound, abstract_round
from eagle3_tools.plan.compile.flags import read_flags
from eagle3_tools.plan.compile.full_size import launches_per_layer, refusals
from eagle3_tools.plan.compile.full_size_problems import MOST_BESIDE_PLAN, MOST_TEMPORARY_BYTES
from eagle3_tools.plan.compile.full_size_table import LIMIT_S, failed
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.options import build_parser, read_options
from eagle3_tools.plan.planner import engine_config, make_plan, read_pair

REPLICAS, CHUNK = 8, 2048
PAIR = "kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla"
LAYOUT = "--arch=gfx950 -tp=8 --enable-expert-parallel --max-model-len=10240 --block-size=64"
SLOTS = 32
"""Slots of a replica: 256 requests on all of them."""
KINDS = (ProgramKind.ROUND, ProgramKind.PREFILL)


@dataclass(frozen=True)
class ReplicaReport:
    """Report of a program; bytes are those of each device. per_layer: launches of a MoE layer in a
    round without collectives."""

    planned_bytes: int
    argument_bytes: int
    temporary_bytes: int
    per_layer: float | None
    collectives: Counter[Collective]
    failures: tuple[str, ...]
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    flags = read_flags("replicas", __doc__, LIMIT_S, argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    every = [(flags.folder, kind) for kind in KINDS]
    results = list(run_each(report_replicas, every, processes=1, limit_s=flags.limit))
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    return 0 if print_replicas(console, results) else 1


def report_replicas(what: tuple[Path, ProgramKind]) -> ReplicaReport:
    """Compile the lean program of this kind. Raises the plan's errors, and RuntimeError if the
    compiler is not installed."""
    begin, (folder, kind) = time.monotonic(), what
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
    program, rows = compiled.program, CHUNK
    if kind is ProgramKind.ROUND:
        rows = SLOTS * (options.num_speculative_tokens + 1)
    problems = [*refused, *replica_problems(compiled, planned, pair.target, rows)]
    return ReplicaReport(
        planned,
        program.argument_bytes,
        program.temporary_bytes,
        launches_per_layer(launches(program.hlo), pair) if kind is ProgramKind.ROUND else None,
        Counter(collectives(program.hlo)),
        tuple(dict.fromkeys(problems)),
        round(time.monotonic() - begin, 1),
    )


def replica_problems(
    compiled: CompiledRound, planned_bytes: int, target: Target, rows: int
) -> Iterator[str]:
    """Yield arguments that differ from the plan, a copied state, large temporaries, kernels that
    spill, and unexpected collectives. rows: of a replica's layer."""
    program = compiled.program
    if abs(program.argument_bytes - planned_bytes) > MOST_BESIDE_PLAN * planned_bytes:
        yield f"{program.argument_bytes:,} B of arguments, {planned_bytes:,} were planned"
    if program.alias_bytes < compiled.state_bytes:
        yield f"{program.alias_bytes:,} B of {compiled.state_bytes:,} donated are written in place"
    if program.temporary_bytes >= MOST_TEMPORARY_BYTES:
        yield f"{program.temporary_bytes / MIB:.0f} MiB of temporaries"
    for kernel in program.kernels:
        yield from kernel_problems(kernel, program.arch)
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


def print_replicas(console: Console, results: Sequence[ReplicaReport | Failure]) -> bool:
    """Print a row for each program, then the failures; return whether there are none."""
    title = f"{PAIR[0]} + {PAIR[1]}, MI355X, {REPLICAS} replicas of {SLOTS} slots: on each device"
    shown = Table(title=title, title_justify="left")
    shown.add_column("program", no_wrap=True)
    for heading in (
        *("arguments\nGB", "by the plan\nGB", "temporaries\nMiB", "launches a\nMoE layer"),
        *("collectives", "s"),
    ):
        shown.add_column(heading, justify="right")
    for kind, result in zip(KINDS, results, strict=True):
        shown.add_row(str(kind), *(("FAILED",) if isinstance(result, Failure) else _cells(result)))
    console.print(shown)
    failures = list(failed(map(str, KINDS), results))
    for line in failures:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not failures


def _cells(report: ReplicaReport) -> tuple[str, ...]:
    return (
        f"{report.argument_bytes / 1e9:.1f}",
        f"{report.planned_bytes / 1e9:.1f}",
        f"{report.temporary_bytes / MIB:.0f}",
        "" if report.per_layer is None else f"{report.per_layer:g}",
        f"{report.collectives.total()}",
        f"{report.seconds:.0f}",
    )


if __name__ == "__main__":
    sys.exit(main())
