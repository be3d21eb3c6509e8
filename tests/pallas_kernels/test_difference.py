import math

import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_tools.self_check.errors import difference, read_arrays
from pallas_kernels.grouped_matmul.tile_map import TileMap

FORMATS = [jnp.float8_e4m3fn, jnp.float8_e4m3fnuz]


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_neighbour_in_float8_is_no_difference_and_the_next_but_one_is_two_steps_less_one(
    dtype: jnp.dtype,
) -> None:
    """From 1 to 2 a step is 1/8; at zero the neighbours have the other sign."""
    wanted = np.array([1.0, -1.5, 2.0, 0.0], dtype)
    assert difference(np.array([1.125, -1.375, 1.875, -(2.0**-10)], dtype), wanted) == 0
    assert difference(np.array([1.25, -1.5, 2.0, 0.0], dtype), wanted) == pytest.approx(1 / 16)
    assert difference(np.array([np.nan, -1.5, 2.0, 0.0], dtype), wanted) == math.inf


def test_integers_count_and_floats_are_shares_of_the_largest() -> None:
    ids = np.arange(4)
    assert difference(np.array([0, 1, 2, 0]), ids) == 0.25
    assert difference(ids + 0.3, ids * 1.0) == pytest.approx(0.1)
    assert difference(ids[:3], ids) == difference(ids[:0] * 1.0, ids * 1.0) == math.inf


def test_of_a_map_only_used_tiles_are_read() -> None:
    tiles = [np.array([1]), np.array([5, 9]), np.array([0, 9]), np.array([2, 9]), np.arange(4)]
    found = list(read_arrays((np.ones(2), TileMap(*tiles), None)))
    assert [array.tolist() for array in found] == [[1, 1], [1], [5], [0], [2], [0, 1]]
