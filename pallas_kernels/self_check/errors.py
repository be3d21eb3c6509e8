"""How far a kernel's result is from its contract's."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from pallas_kernels.difference import difference, read_arrays
from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.partial_sums import total
from pallas_kernels.quantized import QuantizedRows
from pallas_kernels.route.choice import Routes

TOLERANCE = 2e-2
"""Of floats: the largest difference as a share of the largest value; what the benchmark allows."""
QUANTIZED_TOLERANCE = 7e-2
"""Where one side rounded to float8 and the other did not: half a step of e4m3 is 1/16."""
INTEGER_TOLERANCE = 0.1
"""The share of integers that differ: of scores in bfloat16 some are tied."""


class Error(NamedTuple):
    """A difference, and the most it may be."""

    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """Above 1 is wrong."""
        return self.error / self.tolerance


def worst_error(got: Any, wanted: Any) -> Error:
    """The largest error beside its tolerance. Raises ValueError where nothing can be compared."""
    pairs = list(_pairs(got, wanted))
    if not pairs:
        raise ValueError("kernel and contract have no result in common")
    return max((_error(*pair) for pair in pairs), key=lambda error: error.ratio)


def _pairs(got: Any, wanted: Any) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Arrays that must be equal, and whether one side is rounded to float8."""
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
