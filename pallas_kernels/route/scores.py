"""Inside of a kernel: tokens choose their experts and weigh them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.route.choice import RouterOptions
from pallas_kernels.triton import load, store


class Chosen(NamedTuple):
    """token [tokens, 1], nth [1, choices]: numbers, choices up to a power of two.

    ids [tokens, choices]: best first. inside: which of them there are. left [tokens, experts]: -inf
    where an expert was chosen or is none.
    """

    token: Array
    nth: Array
    ids: Array
    inside: Array
    left: Array


def choose_experts(logits: Any, bias: Any, token: Array, top_k: int) -> Chosen:
    """Every token's experts; those of tokens that are not there mean nothing."""
    tokens, experts = logits.shape
    nth = jnp.arange(pl.next_power_of_2(top_k))[None, :]
    expert = jnp.arange(pl.next_power_of_2(experts))[None, :]
    inside = (token < tokens) & (expert < experts)
    left = jax.nn.sigmoid(load(logits.at[token, expert], mask=inside, other=0.0))
    left += load(bias.at[expert], mask=expert < experts, other=0.0)
    # NaN counts as the lowest score, so that what is chosen is always an expert.
    lowest = float(jnp.finfo(jnp.float32).min)
    left = jnp.where(expert < experts, jnp.where(left > lowest, left, lowest), -jnp.inf)

    def add(n: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        left, chosen = state
        # The lower of equals.
        equal = left == jnp.max(left, axis=1)[:, None]
        best = jnp.min(jnp.where(equal, expert, expert.size), axis=1)[:, None]
        return jnp.where(expert == best, -jnp.inf, left), jnp.where(nth == n, best, chosen)

    none = jnp.zeros((token.size, nth.size), jnp.int32)
    left, ids = jax.lax.fori_loop(0, top_k, add, (left, none))
    return Chosen(token, nth, ids, (token < tokens) & (nth < top_k), left)


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
