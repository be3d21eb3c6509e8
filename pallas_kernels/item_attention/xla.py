"""Attention within items on a CPU: a block of queries meets the blocks of keys of its items."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK = 256
"""Rows of queries, and of keys, at a time: scores are [heads, BLOCK, BLOCK]."""


def item_attention(
    q: Float[Array, "n heads dim"],
    k: Float[Array, "n heads dim"],
    v: Float[Array, "n heads dim"],
    items: Int[Array, " n"],
    scale: float,
) -> Float[Array, "n heads dim"]:
    """See `pallas_kernels.item_attention.api.item_attention`."""
    n, heads, dim = q.shape
    block = min(BLOCK, n)
    q, k, v = (in_blocks(x, block) for x in (q, k, v))
    of_keys = in_blocks(items, block, fill=jnp.iinfo(items.dtype).max)
    every = of_keys.reshape(-1)

    def attend(of_block: tuple[Array, Array]) -> Array:
        queries, own = of_block

        def meet(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            return _meet(state, queries, k[i], v[i], own[:, None] == of_keys[i], scale)

        start = (
            jnp.full((heads, block, 1), -jnp.inf),
            jnp.zeros((heads, block, 1)),
            jnp.zeros((heads, block, dim)),
        )
        first = jnp.searchsorted(every, own[0], side="left") // block
        end = -(-jnp.searchsorted(every, own[-1], side="right") // block)
        _, mass, total = lax.fori_loop(first, end, meet, start)
        return jnp.swapaxes(total / mass, 0, 1).astype(q.dtype)

    return lax.map(attend, (q, of_keys)).reshape(-1, heads, dim)[:n]


def in_blocks(x: Array, block: int, fill: int = 0) -> Array:
    """[blocks, block, ...] of [n, ...], the last one filled up."""
    more = -len(x) % block
    rows = jnp.pad(x, ((0, more), *((0, 0),) * (x.ndim - 1)), constant_values=fill)
    return rows.reshape(-1, block, *x.shape[1:])


def _meet(
    state: tuple[Array, Array, Array],
    q: Float[Array, "block heads dim"],
    k: Float[Array, "block heads dim"],
    v: Float[Array, "block heads dim"],
    same: Array,
    scale: float,
) -> tuple[Array, Array, Array]:
    """Largest scores, masses and weighted sums after one more block of keys; float32."""
    largest, mass, total = state
    scores = jnp.einsum("qhd,khd->hqk", q, k, preferred_element_type=jnp.float32) * scale
    scores = jnp.where(same, scores, -jnp.inf)
    now = jnp.maximum(largest, scores.max(-1, keepdims=True))
    # Where nothing was seen yet, exp of a finite number: -inf less -inf is NaN.
    finite = jnp.where(now == -jnp.inf, 0.0, now)
    weights, kept = jnp.exp(scores - finite), jnp.exp(largest - finite)
    values = jnp.einsum("hqk,khd->hqd", weights.astype(v.dtype), v)
    return now, mass * kept + weights.sum(-1, keepdims=True), total * kept + values
