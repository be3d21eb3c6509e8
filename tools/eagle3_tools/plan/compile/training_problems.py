"""Checks of a training step's programs at full size; each lists violations."""

from collections.abc import Iterator, Sequence
from math import prod

import jax

from eagle3_jax.training.distillation import GPU_BLOCK
from eagle3_tools.aot import Program
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.expectations import copy_problems, kernel_problems
from eagle3_tools.plan.compile.full_size_problems import (
    MOST_BESIDE_PLAN,
    MOST_TOLD_BYTES,
    SUMS_A_LAYER,
)
from eagle3_tools.plan.training.model import Part, TrainingPlan

MOST_GAPS = 0.05
"""Largest relative excess of temporaries over the plan: the compiler leaves gaps between arrays."""


def training_problems(
    plan: TrainingPlan,
    part: Part,
    program: Program,
    weights: Sequence[jax.ShapeDtypeStruct],
    donated_bytes: int,
) -> Iterator[str]:
    """Yield every violation. weights: a device's part of the weights that are not updated."""
    planned = sum(plan.arguments(part).values())
    if abs(program.argument_bytes - planned) > MOST_BESIDE_PLAN * planned:
        yield f"{program.argument_bytes:,} B of arguments, {planned:,} were planned"
    planned = sum(plan.temporaries(part).values())
    if program.temporary_bytes > (1 + MOST_GAPS) * planned:
        yield f"{program.temporary_bytes:,} B of temporaries, {planned:,} were planned"
    if program.alias_bytes < donated_bytes:
        yield f"{program.alias_bytes:,} B of {donated_bytes:,} donated are written in place"
    if part == "features":  # An update's states and gradients are as large as the target's head.
        yield from copy_problems(program, weights, {plan.options.rows, plan.options.chunk})
    for kernel in program.kernels:
        yield from kernel_problems(kernel, program.arch)
    yield from collective_problems(plan, part, collectives(program.hlo))


def collective_problems(
    plan: TrainingPlan, part: Part, found: Sequence[Collective]
) -> Iterator[str]:
    """Yield logits, sums of hidden states in the target's pass beyond two a layer and one an
    embedding, and other large collectives except an update's sums over the draft's widths."""
    hidden = plan.pair.target.config.hidden_size
    sums = [one for one in found if one.kind == "all-reduce" and one.shape[-1:] == (hidden,)]
    most = SUMS_A_LAYER * plan.pair.target.config.num_hidden_layers + 1
    if part == "features" and len(sums) > most:
        yield f"{len(sums)} sums of hidden states, {most} would do"
    known = {*sums, *(_sums_of_an_update(plan, found) if part == "update" else ())}
    for one in found:
        if one not in known and one.nbytes > MOST_TOLD_BYTES:
            yield f"{one.kind} of {one.dtype}{list(one.shape)}"


def _sums_of_an_update(plan: TrainingPlan, found: Sequence[Collective]) -> Iterator[Collective]:
    """Yield sums of states and gradients that all devices hold: a layer's input, latents of the
    step's tokens, and the states of all steps whose logits a block compares."""
    draft = plan.pair.draft
    assert draft is not None, "a draft is trained"
    hidden, latent = draft.config.hidden_size, draft.config.latent_attention
    widths = {hidden, 2 * hidden} | ({latent.q_lora_rank, latent.latent_dim} if latent else set())
    compared = plan.options.rows * GPU_BLOCK * plan.options.unroll * hidden
    sizes = {compared, *(plan.tokens * width for width in widths if width)}
    yield from (one for one in found if one.kind == "all-reduce" and prod(one.shape) in sizes)
