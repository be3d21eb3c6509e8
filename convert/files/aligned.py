"""Allocate host memory that a CPU device can use without another copy."""

import math

import numpy as np
from jax.typing import DTypeLike

ALIGNMENT = 64
"""In bytes. XLA:CPU copies memory that is not aligned; NumPy's memory may begin anywhere."""


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialised array like `np.empty`, aligned for XLA:CPU."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes].view(dtype).reshape(shape)
