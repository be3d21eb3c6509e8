"""How far the results of a case lie from what was expected of them."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from pallas_kernels.mla_share.layout import MASS, unpack

Arrays = Sequence[NDArray[Any]]


def largest_error(results: Arrays, expected: Arrays) -> float:
    """Over all results: the largest difference as a share of the largest number expected.

    Bytes of quantised rows count as the share of them that differ. Of other integers, which say
    where or which, none may differ: infinite if one does, as is a number that is not finite.
    """
    return max(_error(got, wanted) for got, wanted in zip(results, expected, strict=True))


def dequantised_error(results: Arrays, expected: Arrays) -> float:
    """Of results that end with float8 rows and their scales: of what these mean, values * scale."""
    return largest_error(_dequantised(results), _dequantised(expected))


def share_error(results: Arrays, expected: Arrays) -> float:
    """Of shares: of their means and of their masses, each by itself."""
    return largest_error(_unpacked(results), _unpacked(expected))


def part_error(results: Arrays, expected: Arrays) -> float:
    """Of values and the logarithms of their masses, -inf where nothing is seen: there in both."""
    return largest_error(_seen_apart(results), _seen_apart(expected))


def route_error(results: Arrays, expected: Arrays) -> float:
    """Of a route's ids, weights, tile map and rows; of the map what its tiles in use say."""
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
