"""Tokenised conversations, and batches that pack them into rows of one length."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from eagle3_jax.vision.item import ImageItem


class Features(NamedTuple):
    """Concatenated inputs of the aux layers, and the final norm's input; arbitrary at padding."""

    aux: Float[Array | np.ndarray, "*rows length aux"]
    hidden: Float[Array | np.ndarray, "*rows length hidden"]


@dataclass(frozen=True)
class Sample:
    """One conversation: ids, loss mask, images in placeholder order, and known target features."""

    token_ids: Sequence[int] | np.ndarray
    wanted: Sequence[bool] | np.ndarray
    features: Features | None = None
    images: tuple[ImageItem, ...] = ()


class PackedBatch(NamedTuple):
    """Packed rows [rows, length]. Segment 0 is padding; a segment attends only to itself.

    `image_rows` [rows, length, hidden] replaces embeddings at the target's image placeholder.
    `features` is set if the samples have them.
    """

    token_ids: np.ndarray | jax.Array
    segments: np.ndarray | jax.Array
    positions: np.ndarray | jax.Array
    wanted: np.ndarray | jax.Array
    image_rows: np.ndarray | jax.Array | None = None
    features: Features | None = None


def padded(sample: Sample, length: int) -> PackedBatch:
    """Put a sample into a row of its own [1, length]; raise ValueError if it is too long."""
    size = len(sample.token_ids)
    if size > length:
        raise ValueError(f"a conversation has {size} tokens, a row holds {length}; drop or cut it")

    def row(values: Any, dtype: Any) -> np.ndarray:
        return np.pad(np.asarray(values, dtype), (0, length - size))[None]

    segments, positions = row([1] * size, np.int32), row(range(size), np.int32)
    return PackedBatch(
        row(sample.token_ids, np.int32), segments, positions, row(sample.wanted, np.float32)
    )
