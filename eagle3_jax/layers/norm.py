"""Root-mean-square normalisation with a weight."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.collectives import all_sum, num_devices
from eagle3_jax.mesh import split_of
from pallas_kernels import HeadNorms, head_squares
from pallas_kernels.rms_norm import Norm, rms_norm


class RMSNorm(nnx.Module):
    """RMS norm with a weight; see `pallas_kernels.rms_norm`."""

    def __init__(self, size: int, eps: float, *, axis: str | None = None, dtype: DTypeLike):
        self.weight = nnx.Param(jnp.ones((size,), dtype), axes=(axis,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        return rms_norm(x, self.norm)

    @property
    def norm(self) -> Norm:
        """Weight and epsilon, for kernels that fuse the norm with a product."""
        return Norm(self.weight.get_value(), self.eps)


def head_norms(
    q_norm: RMSNorm,
    k_norm: RMSNorm,
    q: Float[Array, "batch q_len q_part"],
    k: Float[Array, "batch q_len k_part"],
) -> HeadNorms:
    """Prepare norms over all heads of queries and keys; devices sum both squares together."""
    axes = split_of(q_norm.weight)[0]
    squares = all_sum(head_squares(q, k), axes)
    return HeadNorms(q_norm.norm, k_norm.norm, squares, num_devices(axes))
