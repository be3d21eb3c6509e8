"""Checks of a round compiled at its real size, as a list of what does not hold."""

from collections.abc import Iterator, Sequence

from pallas_kernels.aot.collectives import Collective, collectives
from pallas_kernels.aot.expectations import MIB, copy_problems, kernel_problems
from serve.plan.compile.compiled_round import CompiledRound
from serve.plan.compile.layer_launches import GOAL
from serve.plan.options import PlanOptions
from serve.plan.planner import AbstractPair

MOST_TEMPORARY_BYTES = 2 << 30
MOST_BESIDE_PLAN = 0.01
"""Share by which arguments may differ from what the plan says."""
MOST_TOLD_BYTES = MIB
"""Of one collective that is no sum over hidden states: maxima, counts, (score, id) pairs."""
SUMS_A_LAYER = 2


def full_size_problems(
    options: PlanOptions,
    pair: AbstractPair,
    compiled: CompiledRound,
    planned_bytes: int,
) -> Iterator[str]:
    """planned_bytes: of arguments. Everything that is not as it must be."""
    program = compiled.program
    if abs(program.argument_bytes - planned_bytes) > MOST_BESIDE_PLAN * planned_bytes:
        yield f"{program.argument_bytes:,} B of arguments, {planned_bytes:,} were planned"
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


def launch_problems(per_layer: float) -> list[str]:
    """Of a MoE layer, collectives not counted."""
    return [f"{per_layer:g} launches a MoE layer, {GOAL} at most"] * (per_layer > GOAL)


def collective_problems(
    found: Sequence[Collective], options: PlanOptions, pair: AbstractPair
) -> Iterator[str]:
    """More sums of hidden states than two a layer and one an embedding, and whatever is large."""
    hidden = pair.target.config.hidden_size
    sums = [one for one in found if one.kind == "all-reduce" and one.shape[-1:] == (hidden,)]
    most = SUMS_A_LAYER * pair.target.config.num_hidden_layers + 1
    if pair.draft and options.parallel.draft_devices > 1:
        most += (SUMS_A_LAYER + 1) * max(1, options.num_speculative_tokens)
    if len(sums) > most:
        yield f"{len(sums)} sums of hidden states, {most} would do"
    for one in found:
        if one not in sums and one.nbytes > MOST_TOLD_BYTES:
            yield f"{one.kind} of {one.dtype}{list(one.shape)}"
