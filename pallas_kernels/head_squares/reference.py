"""Reference implementation of `head_squares` in plain JAX."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def head_squares(
    q: Float[Array, "*rows q_width"], k: Float[Array, "*rows k_width"]
) -> Float[Array, "*rows 2"]:
    """Reference implementation of `pallas_kernels.head_squares.api.head_squares`."""
    wide = q.astype(jnp.float32), k.astype(jnp.float32)
    return jnp.stack([jnp.sum(x * x, axis=-1) for x in wide], axis=-1)
