"""A preprocessed image, or a chunk of frames: NumPy alone."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import UInt8


@dataclass(frozen=True, eq=False)
class ImageItem:
    """What the tower reads of one image or chunk of frames.

    patches: colours before normalisation, frame by frame, row by row. grid_thw: frames, and rows
    and columns of patches. num_tokens: positions of a prompt that it fills. digest: SHA-256 of the
    files' bytes and of all that their processing depends on, for caches that users share.
    """

    patches: UInt8[np.ndarray, "n 3 p p"] = field(repr=False)
    grid_thw: tuple[int, int, int]
    num_tokens: int
    digest: bytes = b""


@dataclass(frozen=True)
class PlacedImage:
    """An item in a prompt: its num_tokens positions from `start` hold the placeholder's id."""

    item: ImageItem
    start: int

    @property
    def end(self) -> int:
        """The position behind its last."""
        return self.start + self.item.num_tokens
