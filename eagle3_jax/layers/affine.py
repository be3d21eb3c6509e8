"""Layers with biases, which vision towers have: linear ones, normalisation by mean and variance."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.layers.linear import Linear
from pallas_kernels.quantized import Rows


class BiasedLinear(Linear):
    """y = x @ kernel + bias; whole on every device."""

    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs, dtype: DTypeLike):
        super().__init__((inputs, outputs), (None, None), rngs=rngs, dtype=dtype)
        self.bias = nnx.Param(jnp.zeros((outputs,), dtype), axes=(None,))

    def __call__(self, x: Rows) -> Float[Array, "*rows outputs"]:
        return super().__call__(x) + self.bias.get_value()


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias, in float32."""

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike):
        self.weight = nnx.Param(jnp.ones((size,), dtype), axes=(None,))
        self.bias = nnx.Param(jnp.zeros((size,), dtype), axes=(None,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + self.eps)
        return (centred * scale * self.weight.get_value() + self.bias.get_value()).astype(x.dtype)
