"""A pair's round at its real size for several GPUs: compiled, measured, compared with the plan.

Nothing is allocated: weights are shapes, and XLA's ROCm compiler needs no GPU.
"""

import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.layers.moe import MoE
from eagle3_jax.mesh import make_mesh, shard
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.compile import devices
from eagle3_tools.aot.launches import Launch, count, launches
from eagle3_tools.plan.compile.compiled_round import AbstractRound, abstract_round
from eagle3_tools.plan.compile.full_size_problems import full_size_problems, launch_problems
from eagle3_tools.plan.compile.layer_launches import launches_of_layers
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.model.memory import Memory
from eagle3_tools.plan.options import PlanOptions
from eagle3_tools.plan.planner import AbstractPair, engine_config, make_plan, read_pair


@dataclass(frozen=True)
class FullSizeReport:
    """Report of a compiled round; bytes are those of each device.

    planned_bytes: arguments by the plan. state_bytes: donated. per_layer: launches of a MoE layer
    without collectives; program: launches of the round. collectives: (kind, dtype, shape) and
    count; telling: launches of collectives, of which one may cover several arrays. seconds:
    elapsed; cpu_seconds: of all threads. peak_bytes: of host memory.
    """

    options: PlanOptions
    planned_bytes: int
    argument_bytes: int
    state_bytes: int
    alias_bytes: int
    temporary_bytes: int
    kv_tokens: int
    per_layer: float
    program: int
    collectives: Counter[Collective]
    telling: int
    failures: tuple[str, ...]
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def report_full_size(options: PlanOptions) -> FullSizeReport:
    """Compile `full_size_round` and report on it.

    Run it in a separate process, so that peak_bytes covers this program only. Raises the plan's
    errors, and RuntimeError if the compiler is not installed.
    """
    begin = time.monotonic()
    pair = read_pair(options)
    memory = make_plan(options, pair).memory
    dtype = options.kv_cache_dtype
    state = memory.state + memory.pages(dtype) * memory.page_bytes(dtype)
    planned = memory.pair_weights + state
    with refusals() as refused:
        compiled = _round(options, pair, memory).compile()
    program, found = compiled.program, launches(compiled.program.hlo)
    per_layer = launches_per_layer(found, pair)
    problems = [
        *refused,
        *launch_problems(per_layer, options.parallel.context_parts),
        *full_size_problems(options, pair, compiled, planned, state),
    ]
    return FullSizeReport(
        options,
        planned,
        program.argument_bytes,
        compiled.state_bytes,
        program.alias_bytes,
        program.temporary_bytes,
        memory.tokens(dtype),
        per_layer,
        count(found),
        Counter(collectives(program.hlo)),
        sum(one.kind == "collective" for one in found),
        tuple(dict.fromkeys(problems)),
        round(time.monotonic() - begin, 1),
        round(time.process_time(), 1),
        peak_bytes(),
    )


def full_size_round(options: PlanOptions) -> AbstractRound:
    """Return the lean round of max_num_seqs sequences, with pools as large as the device allows.

    Raises the plan's errors, and RuntimeError if the compiler is not installed.
    """
    pair = read_pair(options)
    return _round(options, pair, make_plan(options, pair).memory)


def full_size_prefill(options: PlanOptions, chunk: int) -> AbstractRound:
    """Return the lean prefill of `chunk` tokens, with pools and errors as in `full_size_round`."""
    pair = read_pair(options)
    memory = make_plan(options, pair).memory
    return _round(options, pair, memory, ProgramKind.PREFILL, prefill_chunk=chunk)


def _round(
    options: PlanOptions,
    pair: AbstractPair,
    memory: Memory,
    kind: ProgramKind = ProgramKind.ROUND,
    **sizes: Any,
) -> AbstractRound:
    arch, parallel = GPUS[options.gpu].arch, options.parallel
    config = replace(
        engine_config(options, pair),
        num_pages=memory.pages(options.kv_cache_dtype),
        batch_buckets=(options.max_num_seqs,),
        kv_cache_dtype=options.kv_cache_dtype,
        # The value does not change the program.
        kv_cache_scale=1.0 if options.kv_cache_dtype == "fp8" else None,
        **sizes,
    )
    mesh: Mesh = make_mesh(
        parallel.devices,
        enable_expert_parallel=parallel.expert_parallel,
        devices=devices(arch, parallel.devices),
    )
    shard(pair.target, mesh)
    if pair.draft and parallel.draft_devices > 1:
        shard(pair.draft, mesh)
    aux = pair.draft.config.aux_layer_ids if pair.draft else ()
    models = pair.target, pair.draft
    return abstract_round(arch, *models, config, aux, mesh, kind=kind, vision=pair.vision)


def launches_per_layer(found: Sequence[Launch], pair: AbstractPair) -> float:
    """Return the mean launches of the layers with experts, except the last one."""
    layers, blocks = launches_of_layers(found), list(pair.target.layers)[:-1]
    counted = [count(layers[i]) for i, one in enumerate(blocks) if isinstance(one.mlp, MoE)]
    return round(sum(counted) / max(1, len(counted)), 1)


def peak_bytes() -> int:
    """Return the peak host memory of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) << 10 if found else 0


@contextmanager
def refusals() -> Iterator[list[str]]:
    """Collect the dispatcher's warnings about kernels that cannot run, within the context."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    log = logging.getLogger("pallas_kernels.dispatch")
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)
