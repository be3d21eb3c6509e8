"""CPU implementation of `mla_decode`: one copy of a chunk serves as keys and as values."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.kv_scale import scaled
from pallas_kernels.paged.softmax import attend, gather_slots


def mla_decode(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    value_kernel: Float[Array, "heads kv_lora value"] | None = None,
) -> Float[Array, "batch q_len heads _"]:
    """CPU implementation of `pallas_kernels.mla_decode.api.mla_decode`."""
    mean, _ = mean_and_mass(q_latent, q_rope, paged, scale)
    out = mean.astype(q_latent.dtype)
    return out if value_kernel is None else jnp.einsum("bqhc,hcd->bqhd", out, value_kernel)


def mean_and_mass(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
) -> tuple[Float[Array, "batch q_len heads kv_lora"], Float[Array, "batch q_len heads"]]:
    """Return what `pallas_kernels.paged.softmax.attend` does: float32 means and log2 masses."""
    (pool,), (kv_scale,) = paged.pools, paged.scales
    batch, _, heads, kv_lora = q_latent.shape
    width, ancestors = pool.shape[-1], paged.ancestors
    query = jnp.concatenate([q_latent, q_rope], axis=-1).reshape(batch, -1, width) * scale

    def read(pages: Array, slots: Array) -> tuple[Array, Array]:
        rows = scaled(gather_slots(pool, pages, paged.in_use(slots)), kv_scale, query.dtype)
        return rows, rows

    # Values keep the rope part, because cutting it off would be a second copy.
    mean, log_mass = attend(
        query,
        jnp.repeat(paged.positions, heads, axis=1),
        paged.page_table,
        read,
        page_size=paged.page_size,
        value_dim=width,
        ancestors=None if ancestors is None else jnp.repeat(ancestors, heads, axis=1),
    )
    shape = q_latent.shape
    return mean[..., :kv_lora].reshape(shape), log_mass.reshape(shape[:-1])
