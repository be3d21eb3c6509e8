"""Reference implementation of `mla_decode` in plain JAX."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.kv_scale import scaled
from pallas_kernels.paged.visibility import visible_slots


def mla_decode(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    value_kernel: Float[Array, "heads kv_lora value"] | None = None,
) -> Float[Array, "batch q_len heads _"]:
    """Reference implementation of `pallas_kernels.mla_decode.api.mla_decode`."""
    scores, rows = scores_and_rows(q_latent, q_rope, paged, scale)
    latent = rows[..., : q_latent.shape[-1]]
    probs = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("bqhs,bsl->bqhl", probs.astype(latent.dtype), latent)
    return out if value_kernel is None else jnp.einsum("bqhc,hcd->bqhd", out, value_kernel)


def scores_and_rows(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
) -> tuple[Float[Array, "batch q_len heads slots"], Float[Array, "batch slots width"]]:
    """Return float32 scores (-inf for unseen slots) and the slots' rows in the queries' dtype (0
    for slots that no query of the sequence sees)."""
    (pool,), (kv_scale,) = paged.pools, paged.scales
    batch = q_latent.shape[0]
    rows = jnp.take(pool, paged.page_table, axis=0, mode="clip").reshape(batch, -1, pool.shape[-1])
    slots = jnp.arange(rows.shape[1])
    # A stale slot may hold NaN, and 0 * NaN is NaN: remove it before the products.
    rows = jnp.where(paged.in_use(slots)[..., None], rows, 0)
    rows = scaled(rows, kv_scale, q_latent.dtype)
    query = jnp.concatenate([q_latent, q_rope], axis=-1)
    scores = jnp.einsum("bqhw,bsw->bqhs", query, rows, preferred_element_type=jnp.float32) * scale
    visible = visible_slots(slots, paged.positions, paged.ancestors)[:, :, None]
    return jnp.where(visible, scores, -jnp.inf), rows
