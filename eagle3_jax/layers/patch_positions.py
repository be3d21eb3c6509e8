"""Patch positions: a learned 2D table, sines over time, and 2D rotary embedding."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

ROPE_THETA = TIME_THETA = 10000.0
CUBIC = -0.75
"""Parameter of the bicubic kernel, as in torch.nn.functional.interpolate."""


class PatchPositions(NamedTuple):
    """Item (never decreasing), frame, row and column of each patch, and its item's grid."""

    item: Int[Array, " n"]
    frame: Int[Array, " n"]
    row: Int[Array, " n"]
    column: Int[Array, " n"]
    frames: Int[Array, " n"]
    rows: Int[Array, " n"]
    columns: Int[Array, " n"]


def learned_positions(
    table: Float[Array, "height width hidden"], places: PatchPositions
) -> Float[Array, "n hidden"]:
    """Resize the table to each item's grid: bicubic, corners not aligned, border repeated."""
    rows, row_weights = _taps(places.row, places.rows, table.shape[0])
    columns, column_weights = _taps(places.column, places.columns, table.shape[1])
    found = jnp.zeros((len(places.row), table.shape[-1]), jnp.float32)
    for i in range(4):
        for j in range(4):
            weight = row_weights[:, i] * column_weights[:, j]
            found += weight[:, None] * table[rows[:, i], columns[:, j]].astype(jnp.float32)
    return found


def _taps(
    index: Int[Array, " n"], count: Int[Array, " n"], size: int
) -> tuple[Int[Array, "n 4"], Float[Array, "n 4"]]:
    """Return the four table lines that a resized line is made of, and their weights."""
    source = (index.astype(jnp.float32) + 0.5) * (size / count.astype(jnp.float32)) - 0.5
    below = jnp.floor(source)
    offsets = jnp.arange(-1, 3)
    lines = below.astype(jnp.int32)[:, None] + offsets
    d = jnp.abs(source[:, None] - below[:, None] - offsets)
    near = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1
    far = ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC
    return jnp.clip(lines, 0, size - 1), jnp.where(d <= 1, near, far)


def time_positions(places: PatchPositions, hidden: int) -> Float[Array, "n hidden"]:
    """Return sin and cos of the frame number; zeros if an item has one frame."""
    powers = np.arange(hidden // 2, dtype=np.float32) / np.float32(hidden / 2)
    angles = places.frame[:, None] * (1 / TIME_THETA**powers).astype(np.float32)
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return jnp.where(places.frames[:, None] > 1, waves, 0.0)


def rotation_angles(places: PatchPositions, head_dim: int) -> Float[Array, "n half"]:
    """Return the angle of each neighbouring pair of a head: by column, by row, by column, ..."""
    powers = np.arange(0, head_dim, 4, dtype=np.float32) / np.float32(head_dim)
    frequencies = jnp.asarray(1 / ROPE_THETA**powers, jnp.float32)
    where = jnp.stack([places.column, places.row], axis=-1)
    angles = frequencies[:, None] * where[:, None, :].astype(jnp.float32)
    return angles.reshape(len(places.row), head_dim // 2)


def rotate_pairs(
    x: Float[Array, "n heads dim"], angles: Float[Array, "n half"]
) -> Float[Array, "n heads dim"]:
    """Rotate neighbours (2i, 2i + 1) by angle i, in float32."""
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    cos, sin = (turn(angles)[:, None, :] for turn in (jnp.cos, jnp.sin))
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)
