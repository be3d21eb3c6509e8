"""Root-mean-square normalisation, in float32 whatever the run dtype."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Norm(NamedTuple):
    """What x goes through before it is multiplied."""

    weight: Float[Array, " hidden"]
    eps: float


def rms_norm(x: Float[Array, "*rows hidden"], norm: Norm) -> Float[Array, "*rows hidden"]:
    """weight * x / sqrt(mean(x^2) + eps); rounds to the run dtype before the weight, as HF does."""
    wide = x.astype(jnp.float32)
    return norm_by(x, norm, jnp.mean(wide * wide, axis=-1))


def norm_by(
    x: Float[Array, "*rows part"], norm: Norm, mean_squares: Float[Array, "*norm_rows"]
) -> Float[Array, "*rows part"]:
    """The same of a part of what is normed, whose mean square is known."""
    scale = jax.lax.rsqrt(mean_squares + norm.eps)[..., None]
    return norm.weight * (x.astype(jnp.float32) * scale).astype(x.dtype)
