from jaxtyping import Array, Float, Int

from pallas_kernels.cache_latents import pallas, reference
from pallas_kernels.cache_latents.rows import LatentRows
from pallas_kernels.dispatch import choose
from pallas_kernels.paged import pool_row
from pallas_kernels.paged.kv_scale import check_scale
from pallas_kernels.partial_sums import Product
from pallas_kernels.quantized import QuantFormat, Rows
from pallas_kernels.rms_norm import Norm


def cache_latents(
    compressed: Product,
    norm: Norm,
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
    pool: Float[Array, "pages page_size width"],
    pages: Int[Array, "batch q_len"],
    offsets: Int[Array, "batch q_len"],
    *,
    q_low: Product | None = None,
    q_norm: Norm | None = None,
    q_format: QuantFormat | None = None,
    kv_scale: Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> tuple[Float[Array, "pages page_size width"], Rows | None]:
    """The pool with one row more for each of compressed, at (pages, offsets); and q_low, normed.

    compressed is [batch, q_len, width] and q_low [batch, q_len, q_lora], both may be in parts. A
    row is a latent, which is normed, and a key that is rotated in pairs of neighbours by cos and
    sin, float32; a float8 pool holds it divided by kv_scale. Of rows that meet in one place any may
    stay. A row of what is not finite has a key of NaN and a latent of zeros. q_low and q_norm are
    the low rank of the queries, where they have one; it comes along because it is there already.
    q_format: of what multiplies it then; where that takes float8 rows, the kernel makes them.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    width = norm.weight.shape[0] + 2 * cos.shape[-1]
    if compressed.shape[-1] != width or pool.shape[-1] != width:
        raise ValueError(
            f"cache_latents: rows are {norm.weight.shape[0]} + {2 * cos.shape[-1]} values; "
            f"compressed has {compressed.shape[-1]}, the pool {pool.shape[-1]}"
        )
    if (q_low is None) != (q_norm is None):
        raise ValueError("cache_latents: q_low and q_norm come together, got one of them")
    check_scale("cache_latents", pool, kv_scale)
    kernel = pool_row.refusal(pool, compressed) or pallas.cache_latents
    run = choose("cache_latents", implementation, reference=reference.cache_latents, pallas=kernel)
    rows = LatentRows(compressed, cos, sin, pages, offsets, norm, kv_scale, q_low, q_norm)
    return run(rows, pool, q_format)
