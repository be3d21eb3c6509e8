"""Tensors read a slab of rows at a time, so that memory does not grow with them."""

import math
from collections.abc import Iterator

import numpy as np

from convert.safetensors_files import DTYPES, TensorInfo

SLAB_ELEMENTS = 1 << 20


def row_slabs(rows: int, row_elements: int, multiple_of: int = 1) -> Iterator[slice]:
    """Slices of about SLAB_ELEMENTS that cover all rows, each starting at a multiple."""
    step = max(SLAB_ELEMENTS // max(row_elements, 1) // multiple_of, 1) * multiple_of
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def read_rows(info: TensorInfo, rows: slice) -> np.ndarray:
    """Reads some rows of a tensor into memory of their own."""
    dtype, row_shape = DTYPES[info.dtype], info.shape[1:]
    count, row_bytes = rows.stop - rows.start, math.prod(row_shape) * dtype.itemsize
    offset = info.start + rows.start * row_bytes
    raw = np.fromfile(info.file, np.uint8, count * row_bytes, offset=offset)
    if raw.size != count * row_bytes:
        raise ValueError(f"{info.file} ended while {info.name} was read")
    return raw.view(dtype).reshape(count, *row_shape)
