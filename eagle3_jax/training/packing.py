"""Packs tokenised conversations into rows of one fixed length."""

from collections.abc import Iterator, Sequence
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
    """Packed rows [rows, length]; segment 0 is padding, a segment attends to itself only."""

    token_ids: np.ndarray | jax.Array
    segments: np.ndarray | jax.Array
    positions: np.ndarray | jax.Array
    wanted: np.ndarray | jax.Array


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
    return PackedBatch(*(np.stack(parts) for parts in zip(*arrays, strict=True)))


def assistant_mask(
    token_ids: Sequence[int], start: int, middle: int, end: int, skip: Sequence[int] = ()
) -> list[bool]:
    """Marks what the assistant says: after `start ... middle` up to and including `end`.

    Ids in `skip` (the empty reasoning marks) are part of the prompt and stay unmarked.
    """
    mask, header, inside = [], False, False
    for token in token_ids:
        mask.append(inside and token not in skip)
        if inside:
            inside = token != end
        elif token == start:
            header = True
        elif header and token == middle:
            header, inside = False, True
    return mask


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
