"""Reference implementation of `gqa_decode` in plain JAX."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.kv_scale import scaled
from pallas_kernels.paged.visibility import visible_slots
from pallas_kernels.quantized import QuantFormat


def gqa_decode(
    q: Float[Array, "batch q_len heads head_dim"],
    paged: PagedKV,
    scale: float,
    *,
    then: QuantFormat | None = None,
) -> Float[Array, "batch q_len width"]:
    """Reference of `pallas_kernels.gqa_decode.api.gqa_decode`; the product quantises its rows."""
    scores, values = scores_and_values(q, paged, scale)
    probs = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("bqkgs,bskd->bqkgd", probs.astype(values.dtype), values)
    return out.reshape(*q.shape[:2], -1)


def scores_and_values(
    q: Float[Array, "batch q_len heads head_dim"], paged: PagedKV, scale: float
) -> tuple[
    Float[Array, "batch q_len kv_heads shared slots"], Float[Array, "batch slots kv_heads head_dim"]
]:
    """Return float32 scores (-inf for unseen slots) and values in the queries' dtype (0 for slots
    that no query of the sequence sees)."""
    batch, q_len, heads, head_dim = q.shape
    kv_heads = paged.pools[0].shape[2]

    def context(pool: Array, pool_scale: Array | None) -> Array:
        rows = jnp.take(pool, paged.page_table, axis=0, mode="clip")
        rows = rows.reshape(batch, -1, kv_heads, head_dim)
        # A stale slot may hold NaN, and 0 * NaN is NaN: remove it before the products.
        written = paged.in_use(jnp.arange(rows.shape[1]))
        return scaled(jnp.where(written[..., None, None], rows, 0), pool_scale, q.dtype)

    keys, values = map(context, paged.pools, paged.scales)
    query = q.reshape(batch, q_len, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.einsum("bqkgd,bskd->bqkgs", query, keys, preferred_element_type=jnp.float32)
    slots = jnp.arange(keys.shape[1])
    visible = visible_slots(slots, paged.positions, paged.ancestors)[:, :, None, None]
    return jnp.where(visible, scores * scale, -jnp.inf), values
