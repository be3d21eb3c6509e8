"""Paged latent attention in XLA: one copy of a chunk serves as keys and as values."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.kv_scale import scaled
from pallas_kernels.paged_softmax import attend, gather_slots
from pallas_kernels.visibility import slots_in_use


def mla_decode(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    pool: Float[Array, "pages page_size width"],
    page_table: Int[Array, "batch pages_per_seq"],
    positions: Int[Array, "batch q_len"],
    *,
    scale: float,
    ancestors: Bool[Array, "batch q_len nodes"] | None = None,
    kv_scale: Float[Array, ""] | None = None,
    value_kernel: Float[Array, "heads kv_lora value"] | None = None,
) -> Float[Array, "batch q_len heads _"]:
    """See `pallas_kernels.mla_decode.api.mla_decode`."""
    batch, _, heads, kv_lora = q_latent.shape
    width = pool.shape[-1]
    query = jnp.concatenate([q_latent, q_rope], axis=-1).reshape(batch, -1, width) * scale
    in_use = slots_in_use(positions, ancestors)

    def read(pages: Array, slots: Array) -> tuple[Array, Array]:
        rows = scaled(gather_slots(pool, pages, in_use(slots)), kv_scale, query.dtype)
        return rows, rows

    # The rope part comes along in the values, because cutting it off would be a second copy.
    out = attend(
        query,
        jnp.repeat(positions, heads, axis=1),
        page_table,
        read,
        page_size=pool.shape[1],
        value_dim=width,
        ancestors=None if ancestors is None else jnp.repeat(ancestors, heads, axis=1),
    )
    out = out[..., :kv_lora].reshape(q_latent.shape)
    return out if value_kernel is None else jnp.einsum("bqhc,hcd->bqhd", out, value_kernel)
