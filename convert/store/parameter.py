"""What a store is made of: named arrays that are read when their turn comes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Parameter:
    """One array of the converted model.

    path: dotted path in the Flax model, in a store the parameter's name.
    read: returns the array [*shape] of `dtype`, in memory of its own; ValueError for bad values.
    tensors: names of what it is read from, one for each row where it is a stack; itself if empty.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray] = field(repr=False, compare=False)
    tensors: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize
