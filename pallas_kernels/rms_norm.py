"""Root-mean-square normalisation, computed in float32 for every run dtype."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Norm(NamedTuple):
    """Weight and epsilon of an RMS norm."""

    weight: Float[Array, " hidden"]
    eps: float


def rms_norm(x: Float[Array, "*rows hidden"], norm: Norm) -> Float[Array, "*rows hidden"]:
    """Return weight * x / sqrt(mean(x^2) + eps), in x's dtype before the weight, as HF does."""
    wide = x.astype(jnp.float32)
    return norm_by(x, norm, jnp.mean(wide * wide, axis=-1))


def norm_by(
    x: Float[Array, "*rows part"], norm: Norm, mean_squares: Float[Array, "*norm_rows"]
) -> Float[Array, "*rows part"]:
    """Normalise a part of a vector by the mean square of the whole vector."""
    scale = jax.lax.rsqrt(mean_squares + norm.eps)[..., None]
    return norm.weight * (x.astype(jnp.float32) * scale).astype(x.dtype)
