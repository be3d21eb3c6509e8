"""Inside a kernel: writing one row into a paged pool."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from pallas_kernels.paged.rows import FP8_MAX
from pallas_kernels.partial_sums import Product
from pallas_kernels.triton import load


def refusal(pool: Array, *rows: Product) -> str | None:
    """Return why a kernel cannot write such rows into this pool, or None if it can."""
    if any(x.dtype not in (jnp.bfloat16, jnp.float32) for x in rows):
        return f"expected rows of bfloat16 or float32, got {', '.join(x.dtype.name for x in rows)}"
    if pool.dtype not in (jnp.bfloat16, jnp.float32, jnp.float8_e4m3fn):
        return f"expected a pool of bfloat16, float32 or float8_e4m3fn, got {pool.dtype}"
    return None


def number(ref: Any, *index: Array | int) -> Array:
    """Load one element of an array as a scalar."""
    return jnp.max(load(ref.at[tuple(jnp.broadcast_to(jnp.int32(i), (1,)) for i in index)]))


def as_stored(row: Array, dtype: Any, scale: Array) -> Array:
    """Implement `pallas_kernels.paged.rows.as_stored`; NaN fails both comparisons and stays NaN."""
    if dtype != jnp.float8_e4m3fn:
        return row.astype(dtype)
    scaled = row.astype(jnp.float32) / scale
    scaled = jnp.where(scaled > FP8_MAX, FP8_MAX, scaled)
    return jnp.where(scaled < -FP8_MAX, -FP8_MAX, scaled).astype(dtype)
