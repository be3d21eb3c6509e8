"""Preprocessed images and video chunks, as NumPy arrays."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import UInt8


@dataclass(frozen=True, eq=False)
class ImageItem:
    """Tower input of one image or chunk of frames.

    `patches` are colours before normalisation, frame by frame, row by row. `grid_thw` counts
    frames, rows and columns of patches, `num_tokens` the prompt positions filled. `digest` is the
    SHA-256 of files and all that their processing depends on, for caches shared between users.
    """

    patches: UInt8[np.ndarray, "n 3 p p"] = field(repr=False)
    grid_thw: tuple[int, int, int]
    num_tokens: int
    digest: bytes = b""


@dataclass(frozen=True)
class PlacedImage:
    """An item in a prompt: its num_tokens positions from `start` hold the placeholder id."""

    item: ImageItem
    start: int

    @property
    def end(self) -> int:
        return self.start + self.item.num_tokens
