"""Difference between a result and its reference as one number, for any dtype."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from pallas_kernels.grouped_matmul.tile_map import TileMap


def difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the error of `got`: 0 for equal arrays, infinity for shapes that differ.

    Integers: the fraction of elements that differ. Floats: the largest absolute difference divided
    by the largest magnitude in `wanted`, infinity if that is not finite. For float8, a neighbouring
    value counts as equal, because the last bit before rounding decides between two neighbours.
    """
    if got.shape != wanted.shape:
        return float("inf")
    if np.issubdtype(wanted.dtype, np.integer) or wanted.dtype == bool:
        return float(np.count_nonzero(got != wanted)) / max(1, wanted.size)
    if wanted.dtype.itemsize == 1:
        wanted = np.nextafter(wanted, got.astype(wanted.dtype))
    wide = wanted.astype(np.float64)
    largest = np.abs(wide).max(initial=0) or 1.0
    error = np.abs(got.astype(np.float64) - wide).max(initial=0) / largest
    return float(error) if np.isfinite(error) else float("inf")


def read_arrays(result: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of a result that are read: of a `TileMap`, only the tiles in use."""
    for leaf in jax.tree.leaves(result, is_leaf=lambda x: isinstance(x, TileMap)):
        if isinstance(leaf, TileMap):
            used, expert, first, rows, order = map(np.asarray, leaf)
            count = int(used[0])
            yield from (used, expert[:count], first[:count], rows[:count])
            yield order[: rows[:count].sum()]
        else:
            yield np.asarray(leaf)
