"""Tokenised conversations, and rows of one fixed length that hold several of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np


@dataclass(frozen=True)
class Sample:
    """One conversation: its token ids, and which of them the loss asks for."""

    token_ids: list[int]
    wanted: list[bool]


class PackedBatch(NamedTuple):
    """Packed rows [rows, length]; segment 0 is padding, a segment attends to itself only.

    image_rows: float [rows, length, hidden] in place of embeddings where the id is the target's
    placeholder of images.
    """

    token_ids: np.ndarray | jax.Array
    segments: np.ndarray | jax.Array
    positions: np.ndarray | jax.Array
    wanted: np.ndarray | jax.Array
    image_rows: jax.Array | None = None


def pack(samples: Iterator[Sample], rows: int, length: int) -> PackedBatch:
    """Takes samples until one no longer fits into any of the rows, then stops.

    Each sample goes to the first row with room; longer samples than a row are an error.
    """
    filled: list[list[Sample]] = [[] for _ in range(rows)]
    room = [length] * rows
    for sample in samples:
        size = len(sample.token_ids)
        if size > length:
            raise ValueError(
                f"a conversation has {size} tokens, rows hold {length}; drop or cut it"
            )
        row = next((i for i, free in enumerate(room) if free >= size), None)
        if row is None:
            break
        filled[row].append(sample)
        room[row] -= size
    arrays = [_row(row, length) for row in filled]
    tokens, segments, positions, wanted = map(np.stack, zip(*arrays, strict=True))
    return PackedBatch(tokens, segments, positions, wanted)


def _row(samples: list[Sample], length: int) -> tuple[np.ndarray, ...]:
    token_ids, segments, positions = (np.zeros(length, np.int32) for _ in range(3))
    wanted = np.zeros(length, np.float32)
    at = 0
    for number, sample in enumerate(samples, start=1):
        span = slice(at, at + len(sample.token_ids))
        token_ids[span] = sample.token_ids
        segments[span] = number
        positions[span] = np.arange(len(sample.token_ids))
        wanted[span] = sample.wanted
        at = span.stop
    return token_ids, segments, positions, wanted
