"""Reference implementation of `router_logits` in plain JAX."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def router_logits(
    x: Float[Array, "tokens hidden"], kernel: Float[Array, "hidden experts"]
) -> Float[Array, "tokens experts"]:
    """Reference implementation of `pallas_kernels.router_logits.api.router_logits`."""
    # By default a GPU would round float32 to TF32 and choose other experts.
    precision = lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None
    return jnp.matmul(x, kernel, precision=precision, preferred_element_type=jnp.float32)
