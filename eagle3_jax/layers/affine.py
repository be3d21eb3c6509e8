"""Linear layers, a joint QKV projection and layer norm with biases, used by vision towers."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.layers.linear import Axes, Linear, normal_param
from pallas_kernels import matmul
from pallas_kernels.quantized import Rows


class BiasedLinear(Linear):
    """y = x @ kernel + bias, with logical `axes` of inputs and outputs.

    If inputs are split, x @ kernel is summed over devices before the bias is added.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike,
        axes: Axes = (None, None),
    ):
        super().__init__((inputs, outputs), axes, rngs=rngs, dtype=dtype)
        self.bias = nnx.Param(jnp.zeros((outputs,), dtype), axes=axes[1:])

    def __call__(self, x: Rows) -> Float[Array, "*rows outputs"]:
        return super().__call__(x) + self.bias.get_value()


class JointHeads(nnx.Module):
    """Joint projection with bias to the queries, keys and values of all heads.

    The kernel is [inputs, 3, outputs]. `heads` is the logical axis of the outputs; a device's part
    has whole heads of all three.
    """

    def __init__(
        self, inputs: int, outputs: int, *, rngs: nnx.Rngs, dtype: DTypeLike, heads: str | None
    ):
        self.kernel = normal_param((inputs, 3, outputs), (None, None, heads), rngs, dtype)
        self.bias = nnx.Param(jnp.zeros((3, outputs), dtype), axes=(None, heads))

    def __call__(self, x: Float[Array, "n inputs"]) -> Float[Array, "n 3 outputs"]:
        kernel, bias = self.kernel.get_value(), self.bias.get_value()
        joint = matmul(x, kernel.reshape(len(kernel), -1)) + bias.reshape(-1)
        return joint.reshape(len(x), *bias.shape)


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias, computed in float32."""

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike):
        self.weight = nnx.Param(jnp.ones((size,), dtype), axes=(None,))
        self.bias = nnx.Param(jnp.zeros((size,), dtype), axes=(None,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + self.eps)
        return (centred * scale * self.weight.get_value() + self.bias.get_value()).astype(x.dtype)
