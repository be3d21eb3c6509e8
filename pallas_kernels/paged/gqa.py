"""Grouped-query attention to paged keys and values: contract and form for CPUs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.paged.gqa_kernel import launch_gqa
from pallas_kernels.paged.kv import PagedKV, visible_slots
from pallas_kernels.paged.softmax import attend
from pallas_kernels.paged.split_kv import refuse
from pallas_kernels.quantized import QuantFormat, Rows


def gqa_decode(
    q: Float[Array, "batch q_len heads head_dim"],
    paged: PagedKV,
    scale: float,
    *,
    then: QuantFormat | None = None,
    implementation: str | None = None,
) -> Rows:
    """Attend queries to paged keys and values; consecutive query heads share a key-value head.

    `paged` has a pool of keys and one of values with rows [kv_heads, head_dim]. One kv_head is
    multi-query, kv_heads == heads is multi-head attention. Scores are multiplied by `scale`; scores
    and softmax are float32.
    then: the format of the kernel that multiplies the result. If that takes float8 in runs as long
    as a head, this kernel quantises the result.
    Returns [batch, q_len, heads * head_dim]. Raises ValueError on shapes that do not fit and on an
    implementation that cannot run.
    """
    k_pool, v_pool = paged.pools
    if k_pool.shape != v_pool.shape or k_pool.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"gqa_decode: k_pool {k_pool.shape} and v_pool {v_pool.shape} must be equal, "
            f"with head_dim {q.shape[-1]} as the queries have"
        )
    if q.shape[2] % k_pool.shape[2]:
        raise ValueError(
            f"gqa_decode: {q.shape[2]} query heads do not divide over {k_pool.shape[2]} kv heads"
        )
    paged.check("gqa_decode", q)
    return GQA_DECODE(implementation, q, paged, scale, then=then)


def _reference(q: Array, paged: PagedKV, scale: float, *, then: QuantFormat | None = None) -> Array:
    """Leave the quantisation to the product that follows."""
    scores, values = scores_and_values(q, paged, scale)
    probs = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("bqkgs,bskd->bqkgd", probs.astype(values.dtype), values)
    return out.reshape(*q.shape[:2], -1)


def _on_cpu(q: Array, paged: PagedKV, scale: float, *, then: QuantFormat | None = None) -> Array:
    mean, _ = mean_and_mass(q, paged, scale)
    return mean.astype(q.dtype).reshape(*q.shape[:2], -1)


def scores_and_values(
    q: Float[Array, "batch q_len heads head_dim"], paged: PagedKV, scale: float
) -> tuple[
    Float[Array, "batch q_len kv_heads shared slots"], Float[Array, "batch slots kv_heads head_dim"]
]:
    """Return float32 scores (-inf for unseen slots) and values in the queries' dtype (0 for slots
    that no query of the sequence sees)."""
    batch, q_len, heads, head_dim = q.shape
    kv_heads = paged.pools[0].shape[2]
    keys, values = paged.context(q.dtype)
    query = q.reshape(batch, q_len, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.einsum("bqkgd,bskd->bqkgs", query, keys, preferred_element_type=jnp.float32)
    slots = jnp.arange(keys.shape[1])
    visible = visible_slots(slots, paged.positions, paged.ancestors)[:, :, None, None]
    return jnp.where(visible, scores * scale, -jnp.inf), values


def mean_and_mass(
    q: Float[Array, "batch q_len heads head_dim"], paged: PagedKV, scale: float
) -> tuple[Float[Array, "batch q_len heads head_dim"], Float[Array, "batch q_len heads"]]:
    """Return float32 means and log2 masses. The query heads of a group are rows of one product."""
    batch, q_len, heads, head_dim = q.shape
    groups = paged.pools[0].shape[2]
    shared = heads // groups
    grouped = (q * scale).reshape(batch, q_len, groups, shared, head_dim)
    query = jnp.moveaxis(grouped, 2, 1).reshape(batch * groups, q_len * shared, head_dim)

    def per_row(of_queries: Array) -> Array:
        return jnp.repeat(jnp.repeat(of_queries, shared, axis=1), groups, axis=0)

    def read(pages: Array, slots: Array) -> tuple[Array, Array]:
        keys, values = (
            jnp.moveaxis(rows, 2, 1).reshape(batch * groups, -1, head_dim)
            for rows in paged.rows_of(pages, slots, q.dtype)
        )
        return keys, values

    found = attend(query, paged, per_row, read, head_dim)
    mean, log_mass = (
        jnp.moveaxis(x.reshape(batch, groups, q_len, shared, *x.shape[2:]), 1, 2) for x in found
    )
    return mean.reshape(q.shape), log_mass.reshape(q.shape[:-1])


GQA_DECODE = Operation(
    "gqa_decode", reference=_reference, pallas=launch_gqa, refuse=refuse, xla=_on_cpu
)
