"""Scales of float8 KV pools: attention uses stored values times the pool's only scale."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def scaled(
    stored: Float[Array, "..."], scale: Float[Array, ""] | None, dtype: DTypeLike
) -> Float[Array, "..."]:
    """Return stored values times the scale in the queries' dtype; unchanged without a scale."""
    if scale is None:
        return stored
    return (stored.astype(jnp.float32) * scale).astype(dtype)


def as_factor(scale: Float[Array, ""] | None) -> Float[Array, "1"]:
    """Return the scale as kernels load it, 1 for None."""
    return jnp.ones(1) if scale is None else scale.reshape(1)


def check_scale(
    operation: str, pool: Float[Array, "pages page_size ..."], scale: Float[Array, ""] | None
) -> None:
    """Raise ValueError if a float8 pool has no scale."""
    if pool.dtype.itemsize == 1 and scale is None:
        raise ValueError(f"{operation}: a pool of {pool.dtype} needs its scale, got none")
