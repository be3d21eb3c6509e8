"""Paged grouped-query attention in XLA: the query heads of a group are rows of one product."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.kv_scale import scaled
from pallas_kernels.paged_softmax import attend, gather_slots
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.visibility import slots_in_use


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
    """See `pallas_kernels.gqa_decode.api.gqa_decode`."""
    batch, q_len, heads, head_dim = q.shape
    _, page_size, groups, _ = k_pool.shape
    shared = heads // groups
    grouped = (q * scale).reshape(batch, q_len, groups, shared, head_dim)
    query = jnp.moveaxis(grouped, 2, 1).reshape(batch * groups, q_len * shared, head_dim)
    in_use = slots_in_use(positions, ancestors)

    def per_query(rows: Array) -> Array:
        return jnp.repeat(jnp.repeat(rows, shared, axis=1), groups, axis=0)

    def per_group(pool: Array, factor: Array | None, pages: Array, slots: Array) -> Array:
        rows = scaled(gather_slots(pool, pages, in_use(slots)), factor, q.dtype)
        return jnp.moveaxis(rows, 2, 1).reshape(batch * groups, -1, head_dim)

    def read(pages: Array, slots: Array) -> tuple[Array, Array]:
        keys = per_group(k_pool, k_scale, pages, slots)
        return keys, per_group(v_pool, v_scale, pages, slots)

    out = attend(
        query,
        per_query(positions),
        page_table,
        read,
        page_size=page_size,
        value_dim=head_dim,
        ancestors=None if ancestors is None else per_query(ancestors),
    )
    out = out.reshape(batch, groups, q_len, shared, head_dim)
    return jnp.moveaxis(out, 1, 2).reshape(batch, q_len, -1)
