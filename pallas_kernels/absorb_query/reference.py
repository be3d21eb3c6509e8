"""Reference implementation of `absorb_query` in plain JAX."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.rotation import rotate_interleaved


def absorb_query(
    q: Float[Array, "batch q_len heads qk"],
    key_kernel: Float[Array, "heads kv_lora nope"],
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
) -> tuple[Float[Array, "batch q_len heads kv_lora"], Float[Array, "batch q_len heads rope"]]:
    """Reference implementation of `pallas_kernels.absorb_query.api.absorb_query`."""
    nope, rope = jnp.split(q, [key_kernel.shape[-1]], axis=-1)
    latent = jnp.einsum("bqhd,hcd->bqhc", nope, key_kernel)
    return latent, rotate_interleaved(rope, cos, sin)
