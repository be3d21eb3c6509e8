"""What the frozen target says about rows of a batch, and how a draft's steps compare with it.

Logits exist for a block of positions at a time, forward and backward: at 163,840 ids those of a row
of 20K tokens would be 13 GB.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.divergence import Divergence

BLOCK = 256
"""Positions of each row whose logits are held together."""


class Teacher(nnx.Module):
    """The part of a target that turns its last states into logits."""

    def __init__(self, target: Target):
        self.norm, self.lm_head = target.norm, target.lm_head

    def logits(self, hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows vocab"]:
        """As `Target.logits`."""
        return self.lm_head(self.norm(hidden)).astype(jnp.float32)


class Lesson(NamedTuple):
    """probs: the target's distribution over the draft's ids (it sums to less than 1 where the draft
    lacks some); best: its most likely draft id, or -1 where its choice is none of them."""

    probs: Float[Array, "*rows draft_vocab"]
    best: Array


class Comparison(NamedTuple):
    """Of one step, row by row: the divergence, and whether the draft's choice is the target's."""

    loss: Float[Array, "rows length"]
    agrees: Float[Array, "rows length"]


def lesson(teacher: Teacher, draft: Eagle3Draft, hidden: Float[Array, "*rows hidden"]) -> Lesson:
    """What the target says behind its states `hidden`."""
    logits = jax.lax.stop_gradient(teacher.logits(hidden))
    full = jax.nn.softmax(logits, axis=-1)
    ids = draft.target_ids
    probs = full if ids is None else full[..., ids]
    covered = jnp.max(probs, axis=-1) == jnp.max(full, axis=-1)
    return Lesson(probs, jnp.where(covered, jnp.argmax(probs, axis=-1), -1))


def compare(
    teacher: Teacher,
    draft: Eagle3Draft,
    states: Sequence[Float[Array, "rows length hidden"]],
    hidden: Float[Array, "rows length hidden"],
    divergence: Divergence,
    *,
    keep_activations: bool = False,
) -> list[Comparison]:
    """Every step's states with the target's `hidden`, position by position. keep_activations:
    logits are kept for backward, not made again."""
    length = hidden.shape[1]
    size = min(BLOCK, length)

    def blocks(x: Array) -> Float[Array, "blocks rows size hidden"]:
        padded = jnp.pad(x, ((0, 0), (0, -length % size), (0, 0)))
        return jnp.moveaxis(padded.reshape(len(x), -1, size, x.shape[-1]), 1, 0)

    block = partial(_compare_block, teacher, draft, divergence)
    compared = jax.lax.map(
        block if keep_activations else jax.checkpoint(block),
        ([blocks(state) for state in states], blocks(hidden)),
    )
    return jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)[:, :length], compared
    )


def _compare_block(
    teacher: Teacher,
    draft: Eagle3Draft,
    divergence: Divergence,
    block: tuple[list[Array], Float[Array, "rows size hidden"]],
) -> list[Comparison]:
    states, hidden = block
    taught = lesson(teacher, draft, hidden)
    compared = []
    for state in states:
        logits = draft.logits(state)
        losses = divergence(taught.probs, jax.nn.log_softmax(logits, axis=-1))
        agrees = jnp.argmax(logits, axis=-1) == taught.best
        compared.append(Comparison(losses, agrees.astype(jnp.float32)))
    return compared
