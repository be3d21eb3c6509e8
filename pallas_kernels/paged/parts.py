"""How many parts the contexts of a batch are cut into.

What a part leaves is rows x kv_lora float32, written and read again: as much as the pool's rows of
twice as many slots as it has rows. So there are as many parts as fill the GPU, and no more.
"""

from pallas_kernels import gpu

COMPUTE_UNITS = {"gfx950": 256, "gfx942": 304}
"""Of MI355X and MI325X; other GPUs are taken for an H200."""
_COMPUTE_UNITS = 132

MOST_PARTS, LEAST_SPLIT = 32, 128
"""The joining kernel loads all parts of a row together. A shorter part takes less time than what
begins and ends it."""

_EXACT_PARTS = ((16, 32), (64, 16), (128, 8), (2048, 4))
"""Up to so many rows of a sequence, its context has at most so many parts."""


def parts_that_fill(programs: int) -> int:
    """Of each context, where so many programs attend to one part of each: a power of two."""
    units = COMPUTE_UNITS.get(gpu.current().arch, _COMPUTE_UNITS)
    parts = max(1, min(units // programs, MOST_PARTS))
    return 1 << (parts.bit_length() - 1)


def exact_parts(rows: int) -> int:
    """Of each context, by its own rows: the same in every batch, as a row's bits are then."""
    return next((parts for limit, parts in _EXACT_PARTS if rows <= limit), 1)
