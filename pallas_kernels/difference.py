"""How far a result is from the one that was wanted, as one number whatever its type."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from pallas_kernels.grouped_matmul.tile_map import TileMap


def difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """Of integers the share that differs. Of floats the largest difference as a share of the
    largest value that was wanted. Infinite where that is not finite, and for other shapes.

    Float8 is what a value was rounded to: half way between two, its last bit before decides which,
    so that a neighbour is no difference.
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
    """Of an operation's result what somebody reads: of a map the tiles that are used."""
    for leaf in jax.tree.leaves(result, is_leaf=lambda x: isinstance(x, TileMap)):
        if isinstance(leaf, TileMap):
            used, expert, first, rows, order = map(np.asarray, leaf)
            count = int(used[0])
            yield from (used, expert[:count], first[:count], rows[:count])
            yield order[: rows[:count].sum()]
        else:
            yield np.asarray(leaf)
