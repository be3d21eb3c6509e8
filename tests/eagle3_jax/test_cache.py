"""Where rows of a paged cache go, against a dictionary from position to value."""

import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.cache import SCRATCH_PAGE, view_pages, write_rows

TABLE = np.array([[5, 2, 7], [3, 6, 0]], np.int32)


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
