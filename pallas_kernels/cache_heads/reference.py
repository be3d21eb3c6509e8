"""Reference implementation of `cache_heads` in plain JAX."""

from jaxtyping import Array, Float

from pallas_kernels.cache_heads.rows import Cached, HeadNorms, HeadPool, HeadRows
from pallas_kernels.paged.rows import as_stored, contain_nonfinite, scatter_rows
from pallas_kernels.partial_sums import total
from pallas_kernels.rms_norm import norm_by
from pallas_kernels.rotation import rotate_halves


def cache_heads(rows: HeadRows, k_pool: HeadPool, v_pool: HeadPool) -> Cached:
    """Reference implementation of `pallas_kernels.cache_heads.api.cache_heads`."""
    *products, cos, sin, pages, offsets, k_scale, v_scale, norms = rows
    q, k, v = map(total, products)
    if norms is not None:
        q, k = norm_heads(q, k, norms)
    q, k, v = (x.reshape(*x.shape[:2], -1, k_pool.shape[-1]) for x in (q, k, v))
    q, k = rotate_halves(q, cos, sin), rotate_halves(k, cos, sin)
    keys, values = as_stored(k, k_scale), as_stored(contain_nonfinite(k, v), v_scale)
    return (
        q,
        scatter_rows(k_pool, keys, pages, offsets),
        scatter_rows(v_pool, values, pages, offsets),
    )


def norm_heads(
    q: Float[Array, "*rows q_width"], k: Float[Array, "*rows k_width"], norms: HeadNorms
) -> tuple[Float[Array, "*rows q_width"], Float[Array, "*rows k_width"]]:
    """Norm queries and keys by the mean square over the heads of all devices."""
    squares = norms.squares[..., 0], norms.squares[..., 1]
    q_mean, k_mean = (
        total / (norms.devices * rows.shape[-1])
        for total, rows in zip(squares, (q, k), strict=True)
    )
    return norm_by(q, norms.q, q_mean), norm_by(k, norms.k, k_mean)
