"""Writing of rows into a paged pool, by XLA and inside a kernel."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.partial_sums import Product
from pallas_kernels.triton import load

FP8_MAX = 448.0


def contain_nonfinite(
    keys: Float[Array, "batch q_len *key"], values: Float[Array, "batch q_len *value"]
) -> Float[Array, "batch q_len *value"]:
    """Return the values to cache with these keys: zeros in rows whose input was not finite.

    Such a row's keys are NaN throughout, as is everything projected from it, so a query that sees
    it gets NaN from its score. A query that does not see it, an earlier row of the same chain, is
    unaffected; NaN values would reach that query with weight 0.
    """
    first = keys.reshape(*keys.shape[:2], -1)[..., 0]
    spoiled = jnp.isnan(first).reshape(*first.shape, *[1] * (values.ndim - 2))
    return jnp.where(spoiled, 0, values)


def as_stored(
    rows: Float[Array, "batch q_len *row"], scale: Float[Array, ""] | None
) -> Float[Array, "batch q_len *row"]:
    """Return rows as a pool with this scale stores them, before rounding. Float8 saturates:
    magnitudes above 448 scales become 448 scales, and NaN stays NaN."""
    if scale is None:
        return rows
    return jnp.clip(rows.astype(jnp.float32) / scale, -FP8_MAX, FP8_MAX)


def scatter_rows(
    pool: Float[Array, "pages page_size *row"],
    rows: Float[Array, "batch q_len *row"],
    pages: Int[Array, "batch q_len"],
    offsets: Int[Array, "batch q_len"],
) -> Float[Array, "pages page_size *row"]:
    """Store one row at each (page, offset), without a flat index, which could overflow.

    A lone row is written twice: XLA:CPU turns a scatter of one row into a slice update, repeats
    that inside the reads that follow, and copies the whole pool instead of writing in place.
    """
    where = (pages.reshape(-1), offsets.reshape(-1))
    flat = rows.reshape(-1, *rows.shape[2:]).astype(pool.dtype)
    if flat.shape[0] == 1:
        where, flat = tuple(jnp.repeat(x, 2, axis=0) for x in where), jnp.repeat(flat, 2, axis=0)
    return pool.at[where].set(flat, mode="promise_in_bounds")


def refuse_rows(pool: Array, *rows: Product) -> str | None:
    """Return why a kernel cannot write such rows into this pool, or None if it can."""
    if any(x.dtype not in (jnp.bfloat16, jnp.float32) for x in rows):
        return f"expected rows of bfloat16 or float32, got {', '.join(x.dtype.name for x in rows)}"
    if pool.dtype not in (jnp.bfloat16, jnp.float32, jnp.float8_e4m3fn):
        return f"expected a pool of bfloat16, float32 or float8_e4m3fn, got {pool.dtype}"
    return None


def number(ref: Any, *index: Array | int) -> Array:
    """Load one element of an array as a scalar."""
    return jnp.max(load(ref.at[tuple(jnp.broadcast_to(jnp.int32(i), (1,)) for i in index)]))


def saturated(row: Array, dtype: Any, scale: Array) -> Array:
    """Round a row inside a kernel as `as_stored` and the pool do; NaN fails both comparisons."""
    if dtype != jnp.float8_e4m3fn:
        return row.astype(dtype)
    scaled = row.astype(jnp.float32) / scale
    scaled = jnp.where(scaled > FP8_MAX, FP8_MAX, scaled)
    return jnp.where(scaled < -FP8_MAX, -FP8_MAX, scaled).astype(dtype)
