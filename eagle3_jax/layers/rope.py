"""Rotary position embeddings: plain and YaRN frequencies, and the cos and sin tables."""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle3_jax.config import RopeConfig, YarnConfig


class RopeTables(NamedTuple):
    """cos and sin, float32 [batch, q_len, dim // 2], for the positions of one call."""

    cos: Float[Array, "batch q_len half"]
    sin: Float[Array, "batch q_len half"]


def inverse_frequencies(rope: RopeConfig, dim: int) -> Float[np.ndarray, " half"]:
    """Angular frequency of each rotated pair, float32 [dim // 2], each step rounded to float32.

    Published models were trained on these bits. The last bit of a frequency rotates a key at
    position 262,143 by up to 0.016 radians, so a more exact frequency changes the model there.
    """
    wavelengths = (rope.theta ** (np.arange(0, dim, 2) / dim)).astype(np.float32)
    plain = 1 / wavelengths
    if rope.yarn is None:
        return plain
    low, high = _ramp_bounds(rope.yarn, rope.theta, dim)
    pairs = np.arange(dim // 2, dtype=np.float32)
    kept = 1 - np.clip((pairs - np.float32(low)) / np.float32(high - low), 0, 1)
    return 1 / (np.float32(rope.yarn.factor) * wavelengths) * (1 - kept) + plain * kept


def _ramp_bounds(yarn: YarnConfig, theta: float, dim: int) -> tuple[float, float]:
    """Return the pairs between which YaRN moves from kept to interpolated frequencies."""

    def pair_with(rotations: float) -> float:
        wavelength = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(theta))

    low = float(max(math.floor(pair_with(yarn.beta_fast)), 0))
    high = float(min(math.ceil(pair_with(yarn.beta_slow)), dim - 1))
    return low, high + 0.001 if low == high else high


def rope_tables(rope: RopeConfig, dim: int, positions: Int[Array, "batch q_len"]) -> RopeTables:
    """Return cos and sin of every position, computed once per step and shared by all layers."""
    angles = positions[..., None].astype(jnp.float32) * inverse_frequencies(rope, dim)
    scale = rope.yarn.cos_sin_scale if rope.yarn else 1.0
    return RopeTables(jnp.cos(angles) * scale, jnp.sin(angles) * scale)
