"""Paged grouped-query attention, written plainly: the contract every implementation meets."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.kv_scale import scaled
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.visibility import slots_in_use, visible_slots


def gqa_decode(
    q: Float[Array, "batch q_len heads head_dim"],
    k_pool: Float[Array, "pages page_size kv_heads head_dim"],
    v_pool: Float[Array, "pages page_size kv_heads head_dim"],
    page_table: Int[Array, "batch pages_per_seq"],
    positions: Int[Array, "batch q_len"],
    *,
    scale: float,
    ancestors: Bool[Array, "batch q_len nodes"] | None = None,
    k_scale: Float[Array, ""] | None = None,
    v_scale: Float[Array, ""] | None = None,
    then: QuantFormat | None = None,
) -> Float[Array, "batch q_len width"]:
    """See `pallas_kernels.gqa_decode.api.gqa_decode`; the product quantises its rows."""
    batch, q_len, heads, head_dim = q.shape
    kv_heads = k_pool.shape[2]

    def context(pool: Array, pool_scale: Array | None) -> Array:
        rows = jnp.take(pool, page_table, axis=0, mode="clip")
        rows = rows.reshape(batch, -1, kv_heads, head_dim)
        # A stale slot may hold NaN, and 0 * NaN is NaN: it must be gone before the products.
        written = slots_in_use(positions, ancestors)(jnp.arange(rows.shape[1]))
        return scaled(jnp.where(written[..., None, None], rows, 0), pool_scale, q.dtype)

    keys, values = context(k_pool, k_scale), context(v_pool, v_scale)
    query = q.reshape(batch, q_len, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.einsum("bqkgd,bskd->bqkgs", query, keys, preferred_element_type=jnp.float32)
    visible = visible_slots(jnp.arange(keys.shape[1]), positions, ancestors)[:, :, None, None]
    probs = jax.nn.softmax(jnp.where(visible, scores * scale, -jnp.inf), axis=-1)
    out = jnp.einsum("bqkgs,bskd->bqkgd", probs.astype(values.dtype), values)
    return out.reshape(batch, q_len, -1)
