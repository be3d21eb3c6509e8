"""Rotary position embeddings: on adjacent pairs, and on the two halves of a head."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def rotate_interleaved(
    x: Float[Array, "batch q_len heads dim"],
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
) -> Float[Array, "batch q_len heads dim"]:
    """Rotate the pairs (2i, 2i+1) in float32, GPT-J style: Kimi-K2.5's convention."""
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    cos, sin = cos[:, :, None], sin[:, :, None]
    turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


def rotate_halves(
    x: Float[Array, "batch q_len heads dim"],
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
) -> Float[Array, "batch q_len heads dim"]:
    """Rotate the pairs (i, i + half) in float32, NeoX style: Llama, MiniMax and the drafts. Further
    dimensions of x are unchanged."""
    x, passed = jnp.split(x, [2 * cos.shape[-1]], axis=-1)
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    turned = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return jnp.concatenate([turned.astype(x.dtype), passed], axis=-1)
