"""Reference implementation of `item_attention` in plain JAX."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

BLOCK = 256
"""Query rows at a time: scores are [heads, BLOCK, n]."""


def item_attention(
    q: Float[Array, "n heads dim"],
    k: Float[Array, "n heads dim"],
    v: Float[Array, "n heads dim"],
    items: Int[Array, " n"],
    scale: float,
) -> Float[Array, "n heads dim"]:
    """Reference implementation of `pallas_kernels.item_attention.api.item_attention`."""

    def attend(row: tuple[Array, Array]) -> Array:
        query, item = row
        scores = jnp.einsum("hd,khd->hk", query, k, preferred_element_type=jnp.float32) * scale
        probs = jax.nn.softmax(jnp.where(items == item, scores, -jnp.inf), axis=-1)
        return jnp.einsum("hk,khd->hd", probs.astype(v.dtype), v)

    return lax.map(attend, (q, items), batch_size=BLOCK)
