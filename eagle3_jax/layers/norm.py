"""Root-mean-square normalisation with a weight."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.collectives import all_sum, num_devices
from eagle3_jax.mesh import split_of
from pallas_kernels.rms_norm import Norm, rms_norm


class RMSNorm(nnx.Module):
    """See `pallas_kernels.rms_norm`."""

    def __init__(self, size: int, eps: float, *, axis: str | None = None, dtype: DTypeLike):
        self.weight = nnx.Param(jnp.ones((size,), dtype), axes=(axis,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        return rms_norm(x, self.norm)

    @property
    def norm(self) -> Norm:
        """For a product that normalises what it multiplies."""
        return Norm(self.weight.get_value(), self.eps)


def norm_heads(
    q_norm: RMSNorm,
    k_norm: RMSNorm,
    q: Float[Array, "*rows q_part"],
    k: Float[Array, "*rows k_part"],
) -> tuple[Float[Array, "*rows q_part"], Float[Array, "*rows k_part"]]:
    """Queries and keys, each normed as one vector of all heads: devices that hold some of the heads
    add up both their squares at once."""
    axes = split_of(q_norm.weight)[0]
    if axes is None:
        return q_norm(q), k_norm(k)
    wide = q.astype(jnp.float32), k.astype(jnp.float32)
    squares = all_sum(jnp.stack([jnp.sum(x * x, axis=-1) for x in wide], axis=-1), axes)
    means = squares / (num_devices(axes) * jnp.array([q.shape[-1], k.shape[-1]]))
    q_scale, k_scale = jnp.split(jax.lax.rsqrt(means + q_norm.eps), 2, axis=-1)
    q, k = (wide[0] * q_scale).astype(q.dtype), (wide[1] * k_scale).astype(k.dtype)
    return q_norm.weight.get_value() * q, k_norm.weight.get_value() * k
