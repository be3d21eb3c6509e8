"""Latent attention of a chunk in XLA: absorbed into query and output, as a decode step has it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.mla_decode import xla
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
    """See `pallas_kernels.mla_prefill.api.mla_prefill`."""
    with jax.named_scope("mla_absorb_query"):
        q = jnp.einsum("bqhd,hcd->bqhc", q_nope, key_kernel)
    out = xla.mla_decode(q, q_rope, paged, scale)
    with jax.named_scope("mla_expand_value"):
        return jnp.einsum("bqhc,hcd->bqhd", out, value_kernel)
