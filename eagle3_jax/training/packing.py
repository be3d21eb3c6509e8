"""Tokenised conversations, and batches of rows of one length, each with one of them or several."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from eagle3_jax.vision.item import ImageItem


class Features(NamedTuple):
    """aux: the residual stream before each aux layer, side by side; hidden: the last layer's
    output, before the final norm. What stands in padding means nothing."""

    aux: Float[Array | np.ndarray, "*rows length aux"]
    hidden: Float[Array | np.ndarray, "*rows length hidden"]


@dataclass(frozen=True)
class Sample:
    """One conversation: its token ids, which of them the loss asks for, the target's features of
    them [length, ...] where they are known already, and what its placeholders are of, in order."""

    token_ids: Sequence[int] | np.ndarray
    wanted: Sequence[bool] | np.ndarray
    features: Features | None = None
    images: tuple[ImageItem, ...] = ()


class PackedBatch(NamedTuple):
    """Packed rows [rows, length]; segment 0 is padding, a segment attends to itself only.

    image_rows: float [rows, length, hidden] in place of embeddings where the id is the target's
    placeholder of images. features: where samples have them.
    """

    token_ids: np.ndarray | jax.Array
    segments: np.ndarray | jax.Array
    positions: np.ndarray | jax.Array
    wanted: np.ndarray | jax.Array
    image_rows: np.ndarray | jax.Array | None = None
    features: Features | None = None


def padded(sample: Sample, length: int) -> PackedBatch:
    """A sample in a row of its own [1, length]; ValueError for a longer one."""
    size = len(sample.token_ids)
    if size > length:
        raise ValueError(f"a conversation has {size} tokens, a row holds {length}; drop or cut it")

    def row(values: Any, dtype: Any) -> np.ndarray:
        return np.pad(np.asarray(values, dtype), (0, length - size))[None]

    segments, positions = row([1] * size, np.int32), row(range(size), np.int32)
    return PackedBatch(
        row(sample.token_ids, np.int32), segments, positions, row(sample.wanted, np.float32)
    )
