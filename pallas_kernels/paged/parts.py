"""Number of parts that the contexts of a batch are split into.

A part writes rows x kv_lora float32 numbers that are read again: as much as the pool's rows of
twice as many slots as it has rows. So there are as many parts as fill the GPU, and no more.
"""

from pallas_kernels import gpu

COMPUTE_UNITS = {"gfx950": 256, "gfx942": 304}
"""Compute units of MI355X and MI325X; other GPUs count as an H200."""
_COMPUTE_UNITS = 132

MOST_PARTS, LEAST_SPLIT = 32, 128
"""The merge kernel loads all parts of a row at once. A part of fewer than LEAST_SPLIT slots takes
less time than its start and end."""

_EXACT_PARTS = ((16, 32), (64, 16), (128, 8), (2048, 4))
"""(rows, parts): a sequence of up to `rows` rows has a context of at most `parts` parts."""


def parts_that_fill(programs: int) -> int:
    """Return the parts of a context, a power of two, that fill the GPU with `programs` a part."""
    units = COMPUTE_UNITS.get(gpu.current().arch, _COMPUTE_UNITS)
    parts = max(1, min(units // programs, MOST_PARTS))
    return 1 << (parts.bit_length() - 1)


def exact_parts(rows: int) -> int:
    """Return the parts of each context by its own rows, so that bits do not depend on the batch."""
    return next((parts for limit, parts in _EXACT_PARTS if rows <= limit), 1)
