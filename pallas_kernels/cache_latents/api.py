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
    """Norm latents, rotate keys and write both into a paged pool; optionally norm low-rank queries.

    compressed [batch, q_len, width] and q_low [batch, q_len, q_lora] may be `PartialSums`. A row of
    compressed is a latent, which is normed, and a key, which is rotated in adjacent pairs by cos
    and sin (float32). It goes to (page, offset); if several rows go to one place, any of them may
    remain. A float8 pool holds rows divided by kv_scale. A row with non-finite values is stored
    with a NaN key and a zero latent.
    q_low and q_norm: low-rank queries, if the model has them; they are normed in the same launch.
    q_format: format of the kernel that multiplies them next. If that takes float8 rows, this kernel
    quantises them.
    Returns the updated pool and the normed queries. Raises ValueError on shapes that do not fit and
    on an implementation that cannot run.
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
