"""Where rows of a paged cache go, against a dictionary from position to value."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from eagle3_jax.cache import (
    SCRATCH_PAGE,
    KVPool,
    PageView,
    QuantizedPool,
    move_rows,
    rows_and_scale,
    view_pages,
    with_rows,
)
from pallas_kernels.paged.rows import as_stored, scatter_rows

TABLE = np.array([[5, 2, 7], [3, 6, 0]], np.int32)


def write_rows(pool: KVPool, rows: jax.Array, view: PageView) -> KVPool:
    """As the contracts of what caches do."""
    stored, scale = rows_and_scale(pool)
    rows = as_stored(rows, scale)
    return with_rows(pool, scatter_rows(stored, rows, view.write_pages, view.write_offsets))


def written(page_size: int, positions: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """A pool of zeros after writing row value 100 * batch + position + 1 at each position."""
    view = view_pages(jnp.asarray(TABLE), jnp.asarray(positions), jnp.asarray(valid), page_size)
    pool = jnp.zeros((8, page_size, 1))
    values = 100 * np.arange(len(positions))[:, None] + positions + 1
    return np.asarray(write_rows(pool, jnp.asarray(values[..., None], jnp.float32), view))[..., 0]


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
@pytest.mark.parametrize("start", [0, 1, 3, 7])
def test_a_run_lands_in_its_pages_over_any_number_of_boundaries(page_size: int, start: int) -> None:
    positions = np.array([start, start + 1, start + 2, start + 3])[None].repeat(2, axis=0)
    pool = written(page_size, positions, np.ones((2, 4), bool))
    expected = np.zeros((8, page_size))
    for batch, row in enumerate(positions):
        for position in row:
            page, offset = divmod(int(position), page_size)
            if page < 3 and TABLE[batch, page] != SCRATCH_PAGE:
                expected[TABLE[batch, page], offset] = 100 * batch + position + 1
    np.testing.assert_array_equal(pool[1:], expected[1:])


def test_rows_that_are_not_valid_go_to_scratch_alone() -> None:
    positions = np.array([[0, 1, 2, 3], [4, 5, 5, 5]])
    valid = np.array([[True, False, True, False], [False] * 4])
    pool = written(2, positions, valid)
    assert (pool[2, 0], pool[5, 0]) == (3, 1)
    assert np.count_nonzero(pool[1:]) == 2


@pytest.mark.parametrize("past", [6, 7, 1000, 2**30])
def test_rows_past_the_table_go_to_scratch(past: int) -> None:
    pool = written(2, np.array([[past], [past]]), np.ones((2, 1), bool))
    assert not pool[1:].any()
    assert pool[SCRATCH_PAGE].any()


def test_the_view_keeps_what_attention_needs() -> None:
    positions = jnp.array([[3, 4], [0, 1]])
    view = view_pages(jnp.asarray(TABLE), positions, jnp.ones((2, 2), bool), 2)
    np.testing.assert_array_equal(view.positions, positions)
    np.testing.assert_array_equal(view.page_table, TABLE)


def test_float8_rows_round_to_the_nearest_value_and_saturate() -> None:
    """Against ml_dtypes' e4m3fn; NaN stays, so that a spoiled row is still seen to be one."""
    rows = np.array([0.3, -0.3, 17.0, 1000.0, -1e9, np.inf, 1e-9, np.nan], np.float32)
    view = view_pages(jnp.asarray(TABLE[:1]), jnp.arange(1)[None], jnp.ones((1, 1), bool), 2)
    empty = QuantizedPool(jnp.zeros((8, 2, len(rows)), jnp.float8_e4m3fn), jnp.float32(0.5))
    values, scale = rows_and_scale(write_rows(empty, jnp.asarray(rows)[None, None], view))
    assert scale is not None
    expected = np.clip(rows / 0.5, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(
        np.asarray(values)[TABLE[0, 0], 0].astype(np.float32), expected.astype(np.float32)
    )


def test_moved_float8_rows_keep_their_bits() -> None:
    rows = jnp.linspace(-9, 9, 16).reshape(1, 2, 8)
    empty = QuantizedPool(jnp.zeros((8, 2, 8), jnp.float8_e4m3fn), jnp.float32(0.25))
    table, both = jnp.asarray(TABLE[:1]), jnp.ones((1, 2), bool)
    origin = view_pages(table, jnp.array([[0, 1]]), both, 2)
    to = view_pages(table, jnp.array([[2, 3]]), both, 2)
    moved, _ = rows_and_scale(move_rows(write_rows(empty, rows, origin), origin, to))
    bits = np.asarray(moved).view(np.uint8)
    assert bits[5].any()
    np.testing.assert_array_equal(bits[2], bits[5])
