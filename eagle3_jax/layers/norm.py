"""Root-mean-square normalisation with a weight."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels.rms_norm import Norm, rms_norm


class RMSNorm(nnx.Module):
    """See `pallas_kernels.rms_norm`."""

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike):
        self.weight = nnx.Param(jnp.ones((size,), dtype), axes=(None,))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        return rms_norm(x, self.norm)

    @property
    def norm(self) -> Norm:
        """For a product that normalises what it multiplies."""
        return Norm(self.weight.get_value(), self.eps)
