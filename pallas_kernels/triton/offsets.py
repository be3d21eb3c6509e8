"""Fix for offsets into large one-byte arrays, for which Pallas uses too few bits.

Pallas uses 64-bit offsets if an array has more than 2**32 bytes. But an offset is a signed number
of elements: with one-byte elements, 32 bits end at 2**31.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.pallas.triton import lowering

_compute_offsets = lowering._compute_offsets_from_indices


def _offsets(block: lowering.BlockInfo, indexer: lowering.NDIndexer) -> Any:
    whole = block.full_shape_dtype
    if jnp.dtype(whole.dtype).itemsize == 1:
        block = replace(block, full_shape_dtype=jax.ShapeDtypeStruct(whole.shape, jnp.int16))
    return _compute_offsets(block, indexer)


def count_elements() -> None:
    """Patch Pallas to use 64-bit offsets if an array has more than 2**31 elements."""
    lowering._compute_offsets_from_indices = _offsets
