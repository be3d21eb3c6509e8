"""CPU implementation of `item_attention`: queries attend to the key blocks of their items."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

QUERIES, KEYS = 128, 256
"""Rows at a time. A head's [QUERIES, KEYS] scores stay in a core's cache."""


def item_attention(
    q: Float[Array, "n heads dim"],
    k: Float[Array, "n heads dim"],
    v: Float[Array, "n heads dim"],
    items: Int[Array, " n"],
    scale: float,
) -> Float[Array, "n heads dim"]:
    """CPU implementation of `pallas_kernels.item_attention.api.item_attention`."""
    size, width = min(QUERIES, len(q)), min(KEYS, len(q))
    of_queries, of_keys = (
        in_blocks(items, rows, fill=jnp.iinfo(items.dtype).max) for rows in (size, width)
    )
    every = of_keys.reshape(-1)

    def of_head(head: tuple[Array, Array, Array]) -> Array:
        queries = in_blocks(head[0], size)
        keys, values = (in_blocks(x, width) for x in head[1:])

        def attend(of_block: tuple[Array, Array]) -> Array:
            query, own = of_block

            def meet(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                same = own[:, None] == of_keys[i]
                return _meet(state, query, keys[i], values[i], same, scale)

            unseen = jnp.zeros((size, 1))
            start = (unseen - jnp.inf, unseen, jnp.zeros(query.shape))
            first = jnp.searchsorted(every, own[0], side="left") // width
            end = -(-jnp.searchsorted(every, own[-1], side="right") // width)
            _, mass, total = lax.fori_loop(first, end, meet, start)
            return total / mass

        attended = lax.map(attend, (queries, of_queries))
        return attended.reshape(-1, attended.shape[-1])[: len(q)].astype(q.dtype)

    heads = tuple(jnp.swapaxes(x, 0, 1) for x in (q, k, v))
    return jnp.swapaxes(lax.map(of_head, heads), 0, 1)


def in_blocks(x: Array, block: int, fill: int = 0) -> Array:
    """Reshape [n, ...] to [blocks, block, ...], padding the last block with `fill`."""
    more = -len(x) % block
    rows = jnp.pad(x, ((0, more), *((0, 0),) * (x.ndim - 1)), constant_values=fill)
    return rows.reshape(-1, block, *x.shape[1:])


def _meet(
    state: tuple[Array, Array, Array],
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim"],
    same: Array,
    scale: float,
) -> tuple[Array, Array, Array]:
    """Add a block of keys to the running peak, mass and weighted sum; float32."""
    largest, mass, total = state
    scores = jnp.matmul(q, k.T, preferred_element_type=jnp.float32) * scale
    scores = jnp.where(same, scores, -jnp.inf)
    now = jnp.maximum(largest, scores.max(-1, keepdims=True))
    # Rows that have seen no key yet: -inf - -inf would be NaN, so exp takes a finite number.
    finite = jnp.where(now == -jnp.inf, 0.0, now)
    weights, kept = jnp.exp(scores - finite), jnp.exp(largest - finite)
    values = weights.astype(v.dtype) @ v
    return now, mass * kept + weights.sum(-1, keepdims=True), total * kept + values
