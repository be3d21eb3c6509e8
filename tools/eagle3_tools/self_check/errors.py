"""Difference between the results of a kernel and of its reference, as one number for any dtype."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.partial_sums import total
from pallas_kernels.quantized import QuantizedRows
from pallas_kernels.route.choice import Routes

TOLERANCE = 2e-2
"""For floats: largest difference divided by the largest value, as in the benchmark."""
QUANTIZED_TOLERANCE = 7e-2
"""If one side is rounded to float8 and the other is not: half a step of e4m3 is 1/16."""
INTEGER_TOLERANCE = 0.1
"""For integers: the fraction that differs. Some bfloat16 scores are tied."""


class Error(NamedTuple):
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """Error divided by tolerance; above 1 is wrong."""
        return self.error / self.tolerance


def worst_error(got: Any, wanted: Any) -> Error:
    """Return the largest error with its tolerance. Raises ValueError if nothing can be compared."""
    pairs = list(_pairs(got, wanted))
    if not pairs:
        raise ValueError("kernel and contract have no result in common")
    return max((_error(*pair) for pair in pairs), key=lambda error: error.ratio)


def _pairs(got: Any, wanted: Any) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Yield arrays that must be equal, and whether one side is rounded to float8."""
    got, wanted = total(got), total(wanted)
    if got is None or wanted is None:
        return
    if isinstance(got, QuantizedRows):
        yield _widened(got), _widened(wanted), True
    elif isinstance(got, TileMap):
        yield from (
            (a, b, False) for a, b in zip(read_arrays(got), read_arrays(wanted), strict=True)
        )
    elif isinstance(got, tuple):
        quantized = isinstance(got, Routes)
        for one, other in zip(got, wanted, strict=True):
            yield from ((a, b, q or quantized) for a, b, q in _pairs(one, other))
    else:
        yield np.asarray(got), np.asarray(wanted), False


def _widened(rows: QuantizedRows | np.ndarray) -> np.ndarray:
    if not isinstance(rows, QuantizedRows):
        return _wide(rows)
    values, scale = _wide(rows.values), _wide(rows.scale)
    if rows.activations == "fp8_group":
        return values * np.repeat(scale, 128, axis=-1)[..., : values.shape[-1]]
    return values * scale[..., None]


def _wide(x: jax.Array | np.ndarray) -> np.ndarray:
    return np.asarray(x.astype(np.float32), np.float64)


def _error(got: np.ndarray, wanted: np.ndarray, quantized: bool) -> Error:
    if np.issubdtype(wanted.dtype, np.integer):
        return Error(difference(got, wanted), INTEGER_TOLERANCE)
    return Error(difference(got, wanted), QUANTIZED_TOLERANCE if quantized else TOLERANCE)


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
