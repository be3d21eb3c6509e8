"""Reference implementation of `mla_prefill` with expanded keys and values, in plain JAX."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.kv_scale import scaled
from pallas_kernels.paged.softmax import softmax_and_mass


def mla_prefill(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> Float[Array, "batch q_len heads value"]:
    """Reference implementation of `pallas_kernels.mla_prefill.api.mla_prefill`."""
    scores, values = scores_and_values(q_nope, q_rope, paged, scale, key_kernel, value_kernel)
    probs = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bqhs,bshd->bqhd", probs.astype(values.dtype), values)


def mla_prefill_part(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> tuple[Float[Array, "batch q_len heads value"], Float[Array, "batch q_len heads"]]:
    """Reference implementation of `pallas_kernels.mla_prefill.api.mla_prefill_part`."""
    scores, values = scores_and_values(q_nope, q_rope, paged, scale, key_kernel, value_kernel)
    probs, mass = softmax_and_mass(scores)
    means = jnp.einsum(
        "bqhs,bshd->bqhd", probs.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    return means, mass


def scores_and_values(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> tuple[Float[Array, "batch q_len heads slots"], Float[Array, "batch slots heads value"]]:
    """Return float32 scores, -inf for unseen slots, and each head's values of the slots."""
    (pool,), (kv_scale,), positions = paged.pools, paged.scales, paged.positions
    batch, kv_lora = positions.shape[0], key_kernel.shape[1]
    rows = jnp.take(pool, paged.page_table, axis=0, mode="clip").reshape(batch, -1, pool.shape[-1])
    slots = jnp.arange(rows.shape[1])
    # A stale slot may hold NaN, and 0 * NaN is NaN: remove it before the products.
    rows = scaled(jnp.where(paged.in_use(slots)[..., None], rows, 0), kv_scale, q_nope.dtype)
    latent, rotated = rows[..., :kv_lora], rows[..., kv_lora:]
    keys = jnp.einsum("bsc,hcd->bshd", latent, key_kernel)
    values = jnp.einsum("bsc,hcd->bshd", latent, value_kernel)
    scores = jnp.einsum("bqhd,bshd->bqhs", q_nope, keys, preferred_element_type=jnp.float32)
    scores += jnp.einsum("bqhd,bsd->bqhs", q_rope, rotated, preferred_element_type=jnp.float32)
    visible = (slots <= positions[..., None])[:, :, None]
    return jnp.where(visible, scores * scale, -jnp.inf), values
