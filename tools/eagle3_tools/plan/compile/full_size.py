"""A pair's round and prefill at their real size for several GPUs, and what a round may exchange."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.layers.mla import MLAttention
from eagle3_jax.layers.moe import MoE
from eagle3_jax.mesh import make_mesh, shard
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.compile import devices
from eagle3_tools.aot.expectations import copy_problems
from eagle3_tools.aot.launches import Launch, count
from eagle3_tools.plan.compile.compiled_round import AbstractRound, CompiledRound, abstract_round
from eagle3_tools.plan.compile.layer_launches import GOAL, launches_of_layers
from eagle3_tools.plan.compile.report import (
    SUMS_A_LAYER,
    large_collectives,
    shared_problems,
    sums_of,
)
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.model.memory import Memory
from eagle3_tools.plan.options import PlanOptions
from eagle3_tools.plan.planner import AbstractPair, engine_config
from pallas_kernels.paged.partial import MASS

BFLOAT16_BYTES = 2


def full_size_program(
    options: PlanOptions,
    pair: AbstractPair,
    memory: Memory,
    kind: ProgramKind = ProgramKind.ROUND,
    replicas: int = 1,
    **sizes: Any,
) -> AbstractRound:
    """Return the lean program of max_num_seqs sequences, with pools as large as the plan's.

    `replicas` share the devices. `sizes` are fields of the engine's configuration. Raises
    RuntimeError if the compiler is not installed.
    """
    arch, parallel = GPUS[options.gpu].arch, options.parallel
    config = replace(
        engine_config(options, pair),
        num_pages=memory.pages(options.kv_cache_dtype),
        batch_buckets=(options.max_num_seqs,),
        kv_cache_dtype=options.kv_cache_dtype,
        # The value does not change the program.
        kv_cache_scale=1.0 if options.kv_cache_dtype == "fp8" else None,
        data_parallel_size=replicas,
        **sizes,
    )
    mesh = make_mesh(
        parallel.devices // replicas,
        enable_expert_parallel=parallel.expert_parallel,
        data_parallel_size=replicas,
        devices=devices(arch, parallel.devices),
    )
    shard(pair.target, mesh)
    if pair.draft and parallel.draft_devices > 1 and replicas == 1:
        shard(pair.draft, mesh)
    aux = pair.draft.config.aux_layer_ids if pair.draft else ()
    models = pair.target, pair.draft
    return abstract_round(arch, *models, config, aux, mesh, kind=kind, vision=pair.vision)


def launches_per_layer(found: Sequence[Launch], pair: AbstractPair) -> float:
    """Return the mean launches of the layers with experts, except the last one."""
    layers, blocks = launches_of_layers(found), list(pair.target.layers)[:-1]
    counted = [count(layers[i]) for i, one in enumerate(blocks) if isinstance(one.mlp, MoE)]
    return round(sum(counted) / max(1, len(counted)), 1)


def full_size_problems(
    options: PlanOptions,
    pair: AbstractPair,
    compiled: CompiledRound,
    planned_bytes: int,
    planned_state: int,
) -> Iterator[str]:
    """Yield every violation. planned_bytes: of arguments; planned_state: of the donated ones."""
    program, donated = compiled.program, compiled.state_bytes
    yield from shared_problems(program, donated_bytes=donated, arguments=planned_bytes)
    if donated != planned_state:
        yield f"{donated:,} B of pools and slots, {planned_state:,} were planned"
    batch = options.max_num_seqs
    rows = {batch, batch * (options.num_speculative_tokens + 1)}
    yield from copy_problems(program, compiled.weights, rows)
    yield from collective_problems(collectives(program.hlo), options, pair)


def launch_problems(per_layer: float, context_parts: int = 1) -> list[str]:
    """Check the launches of a MoE layer without collectives. If devices split a context and cut
    their parts again, one more is allowed, for the partial attention."""
    most = GOAL + (context_parts > 1)
    return [f"{per_layer:g} launches a MoE layer, {most} at most"] * (per_layer > most)


def collective_problems(
    found: Sequence[Collective], options: PlanOptions, pair: AbstractPair
) -> Iterator[str]:
    """Yield sums of hidden states beyond two a layer and one an embedding, exchanges that splitting
    contexts does not explain, and other large collectives."""
    config, passes = pair.target.config, _draft_passes(options, pair)
    most = SUMS_A_LAYER * config.num_hidden_layers + 1 + (SUMS_A_LAYER + 1) * passes
    known, too_many = sums_of(found, config.hidden_size, most)
    yield from too_many
    for kind, expected in _exchanged_bytes(options, pair).items():
        of_heads = [one for one in found if one.kind == kind and _is_of_heads(one, options, pair)]
        known |= set(of_heads)
        if (nbytes := sum(one.nbytes for one in of_heads)) != expected:
            yield f"{kind} of {nbytes:,} B of all heads, {expected:,} were expected"
    yield from large_collectives(found, known)


def _draft_passes(options: PlanOptions, pair: AbstractPair) -> int:
    if pair.draft is None or options.parallel.draft_devices == 1:
        return 0
    return max(1, options.num_speculative_tokens)


def _exchanged_bytes(options: PlanOptions, pair: AbstractPair) -> dict[str, int]:
    """Return the bytes that a device receives by kind of collective, in layers whose contexts are
    split: the queries of all heads of its group, and every device's partial attention of its own
    heads."""
    parts, batch = options.parallel.context_parts, options.max_num_seqs
    if parts == 1:
        return {}
    rows = batch * (options.num_speculative_tokens + 1)
    layers = [(layer.self_attn, rows) for layer in pair.target.layers]
    if pair.draft:
        passes = [rows, *[batch] * options.num_speculative_tokens][: _draft_passes(options, pair)]
        layers += [(pair.draft.midlayer.self_attn, count) for count in passes]
    latent = [(one.config, count) for one, count in layers if isinstance(one, MLAttention)]
    heads = BFLOAT16_BYTES * parts * _heads(options, pair)
    return {
        "all-gather": heads * sum(count * config.latent_dim for config, count in latent),
        "all-to-all": heads * sum(count * (config.kv_lora_rank + MASS) for config, count in latent),
    }


def _is_of_heads(one: Collective, options: PlanOptions, pair: AbstractPair) -> bool:
    """Return whether a collective has this number of heads from each device of a group."""
    return (one.shape[0], *one.shape[-2:-1]) == (
        options.parallel.context_parts,
        _heads(options, pair),
    )


def _heads(options: PlanOptions, pair: AbstractPair) -> int:
    """Return the heads on a device, the same for target and draft."""
    return pair.target.config.num_attention_heads // options.parallel.devices
