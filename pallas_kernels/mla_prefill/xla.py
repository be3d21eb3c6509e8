"""CPU implementation of `mla_prefill`: absorbed into query and output, as in a decode step."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.mla_decode.xla import mean_and_mass
from pallas_kernels.paged.kv import PagedKV


def mla_prefill(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> Float[Array, "batch q_len heads value"]:
    """CPU implementation of `pallas_kernels.mla_prefill.api.mla_prefill`."""
    mean, _ = _of_latents(q_nope, q_rope, paged, scale, key_kernel)
    with jax.named_scope("mla_expand_value"):
        return jnp.einsum("bqhc,hcd->bqhd", mean.astype(q_nope.dtype), value_kernel)


def mla_prefill_part(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> tuple[Float[Array, "batch q_len heads value"], Float[Array, "batch q_len heads"]]:
    """CPU implementation of `pallas_kernels.mla_prefill.api.mla_prefill_part`."""
    mean, log_mass = _of_latents(q_nope, q_rope, paged, scale, key_kernel)
    with jax.named_scope("mla_expand_value"):
        # XLA:CPU does not support this product of bfloat16 with a float32 result.
        return jnp.einsum("bqhc,hcd->bqhd", mean, value_kernel.astype(jnp.float32)), log_mass


def _of_latents(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    key_kernel: Float[Array, "heads kv_lora nope"],
) -> tuple[Float[Array, "batch q_len heads kv_lora"], Float[Array, "batch q_len heads"]]:
    """Return each head's mean of latents, and its log2 mass; float32."""
    with jax.named_scope("mla_absorb_query"):
        q = jnp.einsum("bqhd,hcd->bqhc", q_nope, key_kernel)
    return mean_and_mass(q, q_rope, paged, scale)
