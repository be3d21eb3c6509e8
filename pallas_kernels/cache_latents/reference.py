"""Reference implementation of `cache_latents` in plain JAX."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.cache_latents.rows import LatentPool, LatentRows
from pallas_kernels.paged.rows import as_stored, contain_nonfinite, scatter_rows
from pallas_kernels.partial_sums import total
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.rms_norm import rms_norm
from pallas_kernels.rotation import rotate_interleaved


def cache_latents(
    rows: LatentRows, pool: LatentPool, q_format: QuantFormat | None
) -> tuple[LatentPool, Float[Array, "batch q_len q_lora"] | None]:
    """Reference of `cache_latents.api.cache_latents`; the product quantises its rows."""
    latent, key = jnp.split(total(rows.compressed), [rows.norm.weight.shape[0]], axis=-1)
    key = rotate_interleaved(key[:, :, None], rows.cos, rows.sin)[:, :, 0]
    latent = rms_norm(latent, rows.norm)
    # The latent is both key and value; the rotated part is key only.
    row = jnp.concatenate([contain_nonfinite(key, latent), key], axis=-1)
    pool = scatter_rows(pool, as_stored(row, rows.scale), rows.pages, rows.offsets)
    return pool, None if rows.q_low is None else rms_norm(total(rows.q_low), rows.q_norm)
