"""Host memory that a CPU device takes as its own, without another copy."""

import math

import numpy as np
from jax.typing import DTypeLike

ALIGNMENT = 64
"""Bytes; XLA:CPU copies what begins elsewhere, and numpy's memory begins anywhere."""


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """As `np.empty`."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes].view(dtype).reshape(shape)
