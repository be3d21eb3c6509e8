"""The named, lazily read arrays that form a store."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Parameter:
    """One array of the converted model, read on demand.

    `path` is the dotted path in the Flax model, its name in a store. `read` returns the array in
    its own memory, or raises ValueError for bad values. `tensors` names the tensors it is read
    from, one per row of a stack; empty means the parameter itself.
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
