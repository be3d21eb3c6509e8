from jaxtyping import Array, Float, Int

from pallas_kernels.cache_heads import pallas, reference
from pallas_kernels.cache_heads.rows import HeadNorms, HeadRows
from pallas_kernels.dispatch import choose
from pallas_kernels.paged import pool_row
from pallas_kernels.paged.kv_scale import check_scale
from pallas_kernels.partial_sums import Product


def cache_heads(
    q: Product,
    k: Product,
    v: Product,
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
    k_pool: Float[Array, "pages page_size kv_heads head_dim"],
    v_pool: Float[Array, "pages page_size kv_heads head_dim"],
    pages: Int[Array, "batch q_len"],
    offsets: Int[Array, "batch q_len"],
    *,
    norms: HeadNorms | None = None,
    k_scale: Float[Array, ""] | None = None,
    v_scale: Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> tuple[
    Float[Array, "batch q_len heads head_dim"],
    Float[Array, "pages page_size kv_heads head_dim"],
    Float[Array, "pages page_size kv_heads head_dim"],
]:
    """Norm and rotate queries and keys, and write keys and values into paged pools.

    q, k and v [batch, q_len, width] hold all heads and may be `PartialSums`. Queries and keys are
    normed if `norms` is given, then rotated by cos and sin (float32) on the first 2 * half
    dimensions of each head, with pairs (i, i + half). Each row of k and v goes to (page, offset);
    if several rows go to one place, any of them may remain. Float8 pools hold rows divided by their
    scale. A row with non-finite values is stored with NaN keys and zero values.
    Returns the queries for attention and the updated pools. Raises ValueError on shapes that do not
    fit and on an implementation that cannot run.
    """
    kv_heads, head_dim = k_pool.shape[2:]
    width = kv_heads * head_dim
    if k_pool.shape != v_pool.shape or k.shape[-1] != width or v.shape[-1] != width:
        raise ValueError(
            f"cache_heads: expected rows of {kv_heads} heads of {head_dim}, as the pool of keys "
            f"has; got k {k.shape}, v {v.shape}, pools {k_pool.shape}, {v_pool.shape}"
        )
    if q.shape[-1] % head_dim or 2 * cos.shape[-1] > head_dim:
        raise ValueError(
            f"cache_heads: expected queries of whole heads of {head_dim} and tables for at most "
            f"half of one, got q {q.shape} and cos {cos.shape}"
        )
    check_scale("cache_heads", k_pool, k_scale)
    check_scale("cache_heads", v_pool, v_scale)
    kernel = pool_row.refusal(k_pool, q, k, v) or pallas.cache_heads
    run = choose("cache_heads", implementation, reference=reference.cache_heads, pallas=kernel)
    return run(HeadRows(q, k, v, cos, sin, pages, offsets, k_scale, v_scale, norms), k_pool, v_pool)
