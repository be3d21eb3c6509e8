"""Root-mean-square normalisation, in float32 whatever the run dtype."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float


class RMSNorm(nnx.Module):
    """weight * x / sqrt(mean(x^2) + eps); rounds to the run dtype before the weight, as HF does."""

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike):
        self.weight = nnx.Param(jnp.ones((size,), dtype), axes=(None,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return self.weight.get_value() * (wide * scale).astype(x.dtype)
