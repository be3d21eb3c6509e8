"""Paged latent attention, written plainly: the contract every other implementation meets."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.kv_scale import scaled
from pallas_kernels.paged.visibility import visible_slots


def mla_decode(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    value_kernel: Float[Array, "heads kv_lora value"] | None = None,
) -> Float[Array, "batch q_len heads _"]:
    """See `pallas_kernels.mla_decode.api.mla_decode`."""
    (pool,), (kv_scale,) = paged.pools, paged.scales
    batch, kv_lora = q_latent.shape[0], q_latent.shape[-1]
    rows = jnp.take(pool, paged.page_table, axis=0, mode="clip").reshape(batch, -1, pool.shape[-1])
    slots = jnp.arange(rows.shape[1])
    # A stale slot may hold NaN, and 0 * NaN is NaN: it must be gone before the products.
    rows = jnp.where(paged.in_use(slots)[..., None], rows, 0)
    rows = scaled(rows, kv_scale, q_latent.dtype)
    query = jnp.concatenate([q_latent, q_rope], axis=-1)
    scores = jnp.einsum("bqhw,bsw->bqhs", query, rows, preferred_element_type=jnp.float32) * scale
    visible = visible_slots(slots, paged.positions, paged.ancestors)[:, :, None]
    probs = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    latent = rows[..., :kv_lora]
    out = jnp.einsum("bqhs,bsl->bqhl", probs.astype(latent.dtype), latent)
    return out if value_kernel is None else jnp.einsum("bqhc,hcd->bqhd", out, value_kernel)
