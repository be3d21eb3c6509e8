"""Inside of a kernel: tokens choose their experts and weigh them.

A token's scores are cut into slices of 64, one behind the other: with a wave a token each lane has
one score of every slice, so that the best of a row is found within a wave, without local memory.
"""

from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.route.choice import RouterOptions
from pallas_kernels.triton import load, store

LANES = 64
TAKEN = jnp.iinfo(jnp.int32).min
"""The rank of an expert that was chosen, or is none: below that of every score."""


class Chosen(NamedTuple):
    """token [tokens, 1], nth [1, choices]: numbers, choices up to a power of two, 64 at least.

    ids [tokens, choices]: best first. inside: which of them there are. left: a slice of experts
    [tokens, 64] each, their ranks, TAKEN where one was chosen or is none.
    """

    token: Array
    nth: Array
    ids: Array
    inside: Array
    left: list[Array]

    def first_choices(self, count: int) -> Array:
        """The ids of a power of two of choices, [tokens, count]."""
        only = jnp.where(self.nth < count, self.ids, 0)
        return jnp.sum(only.reshape(self.token.size, -1, count), axis=1)


def slices(experts: int) -> list[Array]:
    """Expert ids [1, 64] of each slice; the last one's may not exist."""
    lane = jnp.arange(LANES)[None, :]
    return [lane + first for first in range(0, experts, LANES)]


def choose_experts(logits: Any, bias: Any, token: Array, top_k: int) -> Chosen:
    """Every token's experts; those of tokens that are not there mean nothing."""
    tokens, experts = logits.shape
    nth = jnp.arange(max(LANES, pl.next_power_of_2(top_k)))[None, :]
    ids = slices(experts)

    def add(n: Array, state: tuple[list[Array], Array]) -> tuple[list[Array], Array]:
        left, chosen = state
        best = jnp.max(reduce(jnp.maximum, left), axis=1)[:, None]
        # The lower of equals.
        pairs = list(zip(left, ids, strict=True))
        equal = (jnp.where(rank == best, expert, experts) for rank, expert in pairs)
        first = jnp.min(reduce(jnp.minimum, equal), axis=1)[:, None]
        left = [jnp.where(expert == first, TAKEN, rank) for rank, expert in pairs]
        return left, jnp.where(nth == n, first, chosen)

    ranks = [_rank(logits, bias, token, expert) for expert in ids]
    none = jnp.zeros((token.size, nth.size), jnp.int32)
    left, chosen = jax.lax.fori_loop(0, top_k, add, (ranks, none))
    return Chosen(token, nth, chosen, (token < tokens) & (nth < top_k), left)


def _rank(logits: Any, bias: Any, token: Array, expert: Array) -> Array:
    """Score plus bias as an integer of the same order: its maximum takes no care of NaN."""
    tokens, experts = logits.shape
    exists = expert < experts
    score = jax.nn.sigmoid(
        load(logits.at[token, expert], mask=(token < tokens) & exists, other=0.0)
    )
    score += load(bias.at[expert], mask=exists, other=0.0)
    # NaN counts as the lowest score, so that what is chosen is always an expert.
    lowest = float(jnp.finfo(jnp.float32).min)
    bits = jax.lax.bitcast_convert_type(jnp.where(score > lowest, score, lowest), jnp.int32)
    # The more negative, the larger are the bits below the sign. There is no -0: a score is at
    # least 0.
    return jnp.where(exists, jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits), TAKEN)


def load_first(first: Any) -> Array | int:
    """The first expert of this device."""
    return 0 if first is None else load(first.at[jnp.arange(1)])


def store_choice(
    ids: Any, weights: Any, logits: Any, chosen: Chosen, options: RouterOptions, first: Array | int
) -> None:
    """What the tokens chose, counted from this device's first expert, with their weights."""
    # Loaded again, not kept for all experts.
    found = load(logits.at[chosen.token, chosen.ids], mask=chosen.inside, other=0.0)
    scores = jnp.where(chosen.inside, jax.nn.sigmoid(found), 0)
    total = jnp.sum(scores, axis=1)[:, None] + 1e-20 if options.normalise else 1.0
    store(ids.at[chosen.token, chosen.nth], chosen.ids - first, mask=chosen.inside)
    store(
        weights.at[chosen.token, chosen.nth], scores / total * options.scaling, mask=chosen.inside
    )
