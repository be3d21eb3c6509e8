"""Parts shared by the attention layers: cache-free attention and the kernels' cache argument."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle3_jax.cache import KVPools, PageView, rows_and_scale
from pallas_kernels import PagedKV


def causal_attention(
    q: Float[Array, "batch q_len heads dim"],
    k: Float[Array, "batch q_len kv_heads dim"],
    v: Float[Array, "batch q_len kv_heads v_dim"],
    scale: float,
) -> Float[Array, "batch q_len heads v_dim"]:
    """Compute softmax(scale * q k^T, causal) v in float32; query heads share KV heads in groups."""
    groups = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, groups, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bshd->bhqs", q, k, preferred_element_type=jnp.float32) * scale
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqs,bshd->bqhd", weights.astype(v.dtype), v)


def paged_kv(pools: KVPools, pages: PageView) -> PagedKV:
    """Combine a layer's pools with this call's page table, positions and ancestors."""
    rows, scales = zip(*map(rows_and_scale, pools), strict=True)
    return PagedKV(rows, scales, pages.page_table, pages.positions, pages.ancestors)
