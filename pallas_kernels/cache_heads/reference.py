"""Rows of keys and values in the cache, written plainly: the contract."""

from jaxtyping import Array, Float, Int

from pallas_kernels.cache_heads.norms import HeadNorms
from pallas_kernels.paged.rows import as_stored, contain_spoiled, scatter_rows
from pallas_kernels.rms_norm import norm_by
from pallas_kernels.rotation import rotate_halves


def cache_heads(
    q: Float[Array, "batch q_len q_width"],
    k: Float[Array, "batch q_len width"],
    v: Float[Array, "batch q_len width"],
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
) -> tuple[
    Float[Array, "batch q_len heads head_dim"],
    Float[Array, "pages page_size kv_heads head_dim"],
    Float[Array, "pages page_size kv_heads head_dim"],
]:
    """See `pallas_kernels.cache_heads.api.cache_heads`."""
    if norms is not None:
        q, k = norm_heads(q, k, norms)
    q, k, v = (rows.reshape(*rows.shape[:2], -1, k_pool.shape[-1]) for rows in (q, k, v))
    q, k = rotate_halves(q, cos, sin), rotate_halves(k, cos, sin)
    keys, values = as_stored(k, k_scale), as_stored(contain_spoiled(k, v), v_scale)
    return (
        q,
        scatter_rows(k_pool, keys, pages, offsets),
        scatter_rows(v_pool, values, pages, offsets),
    )


def norm_heads(
    q: Float[Array, "*rows q_width"], k: Float[Array, "*rows k_width"], norms: HeadNorms
) -> tuple[Float[Array, "*rows q_width"], Float[Array, "*rows k_width"]]:
    """Each by the mean square of all its heads, wherever they are."""
    squares = norms.squares[..., 0], norms.squares[..., 1]
    q_mean, k_mean = (
        total / (norms.devices * rows.shape[-1])
        for total, rows in zip(squares, (q, k), strict=True)
    )
    return norm_by(q, norms.q, q_mean), norm_by(k, norms.k, k_mean)
