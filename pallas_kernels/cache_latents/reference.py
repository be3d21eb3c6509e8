"""Rows of the latent cache, written plainly: the contract every implementation meets."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.paged.rows import as_stored, contain_spoiled, scatter_rows
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.rms_norm import Norm, rms_norm
from pallas_kernels.rotation import rotate_interleaved


def cache_latents(
    compressed: Float[Array, "batch q_len width"],
    norm: Norm,
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
    pool: Float[Array, "pages page_size width"],
    pages: Int[Array, "batch q_len"],
    offsets: Int[Array, "batch q_len"],
    *,
    q_low: Float[Array, "batch q_len q_lora"] | None = None,
    q_norm: Norm | None = None,
    q_format: QuantFormat | None = None,
    kv_scale: Float[Array, ""] | None = None,
) -> tuple[Float[Array, "pages page_size width"], Float[Array, "batch q_len q_lora"] | None]:
    """See `pallas_kernels.cache_latents.api.cache_latents`; the product quantises its rows."""
    latent, key = jnp.split(compressed, [norm.weight.shape[0]], axis=-1)
    key = rotate_interleaved(key[:, :, None], cos, sin)[:, :, 0]
    latent = rms_norm(latent, norm)
    # The latent is key and value; the rotated part is key alone.
    row = jnp.concatenate([contain_spoiled(key, latent), key], axis=-1)
    pool = scatter_rows(pool, as_stored(row, kv_scale), pages, offsets)
    return pool, None if q_low is None or q_norm is None else rms_norm(q_low, q_norm)
