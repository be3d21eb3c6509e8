"""Error metrics between the results of a case and the expected results."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from pallas_kernels.paged.partial import MASS, unpack

Arrays = Sequence[NDArray[Any]]


def largest_error(results: Arrays, expected: Arrays) -> float:
    """Return the largest difference, over all results, relative to the largest expected number.

    For bytes of quantised rows it is the fraction that differ. Other integers are indices and must
    be equal: the error is infinite if one differs, or if a number is not finite.
    """
    return max(_error(got, wanted) for got, wanted in zip(results, expected, strict=True))


def dequantised_error(results: Arrays, expected: Arrays) -> float:
    """Compare results that end with float8 rows and scales as values * scale."""
    return largest_error(_dequantised(results), _dequantised(expected))


def share_error(results: Arrays, expected: Arrays) -> float:
    """Compare partial attention: means and masses separately."""
    return largest_error(_unpacked(results), _unpacked(expected))


def part_error(results: Arrays, expected: Arrays) -> float:
    """Compare values and log-masses; -inf (nothing visible) must be at the same places."""
    return largest_error(_seen_apart(results), _seen_apart(expected))


def route_error(results: Arrays, expected: Arrays) -> float:
    """Compare a route's ids, weights, tile map and rows; of the map only its tiles in use."""
    return largest_error(_in_use(results), _in_use(expected))


def _dequantised(arrays: Arrays) -> Arrays:
    *others, values, scale = arrays
    rows = values.astype(np.float32).reshape(*scale.shape, -1)
    return [*others, rows * scale[..., None]]


def _unpacked(arrays: Arrays) -> Arrays:
    (shares,) = arrays
    means, masses = unpack(jnp.asarray(shares), shares.shape[-1] - MASS)
    return [np.asarray(means), np.asarray(masses)]


def _seen_apart(arrays: Arrays) -> Arrays:
    values, masses = arrays
    seen = masses != -np.inf
    return [values, np.where(seen, masses, 0), seen.astype(np.int32)]


def _in_use(arrays: Arrays) -> Arrays:
    ids, weights, used, *of_tiles, order = arrays[:7]
    tiles = [array[: int(used[0])] for array in of_tiles]
    return [ids, weights, used, *tiles, order[: int(tiles[2].sum())], *arrays[7:]]


def _error(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    if got.shape != wanted.shape:
        return float("inf")
    if wanted.dtype in (np.int8, np.uint8):
        return float(np.mean(got != wanted))
    if np.issubdtype(wanted.dtype, np.integer):
        return 0.0 if np.array_equal(got, wanted) else float("inf")
    wide = wanted.astype(np.float64)
    error = np.abs(got.astype(np.float64) - wide).max() / (np.abs(wide).max() or 1.0)
    return float(error) if np.isfinite(error) else float("inf")
