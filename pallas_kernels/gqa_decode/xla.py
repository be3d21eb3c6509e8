"""CPU implementation of `gqa_decode`: the query heads of a group are rows of one product."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.kv_scale import scaled
from pallas_kernels.paged.softmax import attend, gather_slots
from pallas_kernels.quantized import QuantFormat


def gqa_decode(
    q: Float[Array, "batch q_len heads head_dim"],
    paged: PagedKV,
    scale: float,
    *,
    then: QuantFormat | None = None,
) -> Float[Array, "batch q_len width"]:
    """CPU implementation of `pallas_kernels.gqa_decode.api.gqa_decode`."""
    mean, _ = mean_and_mass(q, paged, scale)
    return mean.astype(q.dtype).reshape(*q.shape[:2], -1)


def mean_and_mass(
    q: Float[Array, "batch q_len heads head_dim"], paged: PagedKV, scale: float
) -> tuple[Float[Array, "batch q_len heads head_dim"], Float[Array, "batch q_len heads"]]:
    """Return what `pallas_kernels.paged.softmax.attend` does: float32 means and log2 masses."""
    batch, q_len, heads, head_dim = q.shape
    groups, ancestors = paged.pools[0].shape[2], paged.ancestors
    shared = heads // groups
    grouped = (q * scale).reshape(batch, q_len, groups, shared, head_dim)
    query = jnp.moveaxis(grouped, 2, 1).reshape(batch * groups, q_len * shared, head_dim)

    def per_query(rows: Array) -> Array:
        return jnp.repeat(jnp.repeat(rows, shared, axis=1), groups, axis=0)

    def per_group(pool: Array, factor: Array | None, pages: Array, slots: Array) -> Array:
        rows = scaled(gather_slots(pool, pages, paged.in_use(slots)), factor, q.dtype)
        return jnp.moveaxis(rows, 2, 1).reshape(batch * groups, -1, head_dim)

    def read(pages: Array, slots: Array) -> tuple[Array, Array]:
        keys, values = (
            per_group(pool, factor, pages, slots)
            for pool, factor in zip(paged.pools, paged.scales, strict=True)
        )
        return keys, values

    found = attend(
        query,
        per_query(paged.positions),
        paged.page_table,
        read,
        page_size=paged.page_size,
        value_dim=head_dim,
        ancestors=None if ancestors is None else per_query(ancestors),
    )
    mean, log_mass = (
        jnp.moveaxis(x.reshape(batch, groups, q_len, shared, *x.shape[2:]), 1, 2) for x in found
    )
    return mean.reshape(q.shape), log_mass.reshape(q.shape[:-1])
