"""KV pools of eight bits: a stored number times the pool's one scale is what is attended to."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def scaled(
    stored: Float[Array, "..."], scale: Float[Array, ""] | None, dtype: DTypeLike
) -> Float[Array, "..."]:
    """What the stored numbers stand for, in the queries' dtype; without a scale, themselves."""
    if scale is None:
        return stored
    return (stored.astype(jnp.float32) * scale).astype(dtype)


def as_factor(scale: Float[Array, ""] | None) -> Float[Array, "1"]:
    """The scale as kernels load it, 1 for none."""
    return jnp.ones(1) if scale is None else scale.reshape(1)


def check_scale(
    operation: str, pool: Float[Array, "pages page_size ..."], scale: Float[Array, ""] | None
) -> None:
    """Raises ValueError for a float8 pool that comes without its scale."""
    if pool.dtype.itemsize == 1 and scale is None:
        raise ValueError(f"{operation}: a pool of {pool.dtype} needs its scale, got none")
