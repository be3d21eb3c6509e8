"""Checks of a round compiled at its real size; each lists violations."""

from collections.abc import Iterator, Sequence

from eagle3_jax.layers.mla import MLAttention
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.expectations import MIB, copy_problems, kernel_problems
from eagle3_tools.plan.compile.compiled_round import CompiledRound
from eagle3_tools.plan.compile.layer_launches import GOAL
from eagle3_tools.plan.options import PlanOptions
from eagle3_tools.plan.planner import AbstractPair
from pallas_kernels.paged.partial import MASS

MOST_TEMPORARY_BYTES = 2 << 30
MOST_BESIDE_PLAN = 0.01
"""Largest relative difference between arguments and plan."""
MOST_TOLD_BYTES = MIB
"""Largest collective besides sums over hidden states: maxima, counts, (score, id) pairs."""
SUMS_A_LAYER = 2
BFLOAT16_BYTES = 2


def full_size_problems(
    options: PlanOptions,
    pair: AbstractPair,
    compiled: CompiledRound,
    planned_bytes: int,
    planned_state: int,
) -> Iterator[str]:
    """Yield every violation. planned_bytes: of arguments; planned_state: of the donated ones."""
    program = compiled.program
    if abs(program.argument_bytes - planned_bytes) > MOST_BESIDE_PLAN * planned_bytes:
        yield f"{program.argument_bytes:,} B of arguments, {planned_bytes:,} were planned"
    if compiled.state_bytes != planned_state:
        yield f"{compiled.state_bytes:,} B of pools and slots, {planned_state:,} were planned"
    if program.temporary_bytes >= MOST_TEMPORARY_BYTES:
        yield f"{program.temporary_bytes / MIB:.0f} MiB of temporaries"
    if program.alias_bytes < compiled.state_bytes:
        yield f"{program.alias_bytes:,} B of {compiled.state_bytes:,} donated are written in place"
    batch = options.max_num_seqs
    rows = {batch, batch * (options.num_speculative_tokens + 1)}
    yield from copy_problems(program, compiled.weights, rows)
    for kernel in program.kernels:
        yield from kernel_problems(kernel, program.arch)
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
    hidden = pair.target.config.hidden_size
    sums = [one for one in found if one.kind == "all-reduce" and one.shape[-1:] == (hidden,)]
    passes = _draft_passes(options, pair)
    most = SUMS_A_LAYER * pair.target.config.num_hidden_layers + 1 + (SUMS_A_LAYER + 1) * passes
    if len(sums) > most:
        yield f"{len(sums)} sums of hidden states, {most} would do"
    known = set(sums)
    for kind, expected in _exchanged_bytes(options, pair).items():
        of_heads = [one for one in found if one.kind == kind and _is_of_heads(one, options, pair)]
        known |= set(of_heads)
        if (nbytes := sum(one.nbytes for one in of_heads)) != expected:
            yield f"{kind} of {nbytes:,} B of all heads, {expected:,} were expected"
    for one in found:
        if one not in known and one.nbytes > MOST_TOLD_BYTES:
            yield f"{one.kind} of {one.dtype}{list(one.shape)}"


def _draft_passes(options: PlanOptions, pair: AbstractPair) -> int:
    """Return the passes of a draft that is split over the devices."""
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
