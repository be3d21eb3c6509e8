"""Places of rows in a paged cache: over page borders, at the last of 262,144 positions, on pages
beyond 2^16 and in a pool of more than 2^31 numbers."""

from functools import partial
from typing import Any

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
from pallas_kernels import PagedKV, cache_latents, mla_decode
from pallas_kernels.paged.rows import as_stored, scatter_rows
from pallas_kernels.rms_norm import Norm

TABLE = np.array([[5, 2, 7], [3, 6, 0]], np.int32)


def write_rows(pool: KVPool, rows: jax.Array, view: PageView) -> KVPool:
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


LAST = 262_143
SCALE = 0.25


def rows_of(count: int, width: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(1, count, width)), jnp.float32)


def queries(kv_lora: int, rope: int, count: int = 1) -> tuple[jax.Array, jax.Array]:
    heads = rows_of(2 * count, kv_lora + rope, seed=1).reshape(1, count, 2, -1)
    return heads[..., :kv_lora], heads[..., kv_lora:]


def write(pool: Any, rows: Any, view: PageView, kv_scale: Any = None) -> Any:
    """The pool with these latents, as a layer caches them; keys are not turned."""
    half = 4
    norm = Norm(jnp.ones(rows.shape[-1] - 2 * half), 1e-6)
    cos = jnp.ones((*rows.shape[:2], half))
    where = view.write_pages, view.write_offsets
    return cache_latents(rows, norm, cos, 0 * cos, pool, *where, kv_scale=kv_scale)[0]


def test_the_last_position_sees_all_262144_through_pages_beyond_2_to_16() -> None:
    rng, page_size, kv_lora, rope = np.random.default_rng(2), 2, 8, 8
    pages = (LAST + 1) // page_size
    pool = rng.normal(size=(pages + 1, page_size, kv_lora + rope)).astype(np.float32)
    table = rng.permutation(pages).astype(np.int32)[None] + 1
    view = view_pages(jnp.asarray(table), jnp.array([[LAST]]), jnp.ones((1, 1), bool), page_size)
    pool = write(jnp.asarray(pool), rows_of(1, kv_lora + rope), view)
    query = queries(kv_lora, rope)
    paged = PagedKV((pool,), (None,), view.page_table, view.positions)
    found = mla_decode(*query, paged, SCALE, implementation="xla")

    context = np.asarray(pool, np.float64)[table[0]].reshape(LAST + 1, -1)
    scores = np.concatenate(query, -1, dtype=np.float64)[0, 0] @ context.T * SCALE
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ context[:, :kv_lora] / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found[0, 0], expected, rtol=0, atol=1e-5)
    assert table.max() > 2**16 and view.write_pages[0, 0] == table[0, -1]


@pytest.mark.long
def test_a_pool_beyond_2_to_31_numbers_is_written_moved_and_read_as_a_small_one() -> None:
    """2.2 GB of float8 with Kimi's rows: a context that lies on both sides of the 2^31st number."""
    page_size, kv_lora, rope = 16, 568, 8
    border = 2**31 // (page_size * (kv_lora + rope))
    far = np.array([[border - 1, border, border + 1, border + 6000]], np.int32)
    assert (border + 6001) * page_size * (kv_lora + rope) > 2**31 and border > 2**16
    small, large = (
        cached_and_attended(table, pages, page_size, kv_lora, rope)
        for table, pages in ((np.array([[1, 2, 3, 4]], np.int32), 5), (far, border + 6001))
    )
    for ours, expected in zip(large, small, strict=True):
        np.testing.assert_array_equal(ours, expected)


def cached_and_attended(
    table: np.ndarray, pages: int, page_size: int, kv_lora: int, rope: int
) -> tuple[np.ndarray, ...]:
    """Rows in this table's pages, the last moved to the first, and what queries make of them; how
    many pages of the pool hold anything."""
    count, width = table.size * page_size, kv_lora + rope

    @partial(jax.jit, donate_argnums=0)
    def run(pool: Any, rows: jax.Array, q: tuple[jax.Array, jax.Array]) -> Any:
        positions = jnp.arange(count)[None]
        valid = jnp.ones((1, count), bool)
        view = view_pages(jnp.asarray(table), positions, valid, page_size)
        pool = QuantizedPool(write(pool.values, rows, view, pool.scale), pool.scale)
        first, last = (
            view_pages(jnp.asarray(table), at, valid[:, :1], page_size)
            for at in (positions[:, :1], positions[:, -1:])
        )
        pool = move_rows(pool, last, first)
        paged = PagedKV((pool.values,), (pool.scale,), view.page_table, positions[:, -2:])
        used = (pool.values.view(jnp.uint8) != 0).any((1, 2)).sum()
        return pool, mla_decode(*q, paged, SCALE, implementation="xla"), used

    empty = QuantizedPool(jnp.zeros((pages, page_size, width), jnp.float8_e4m3fn), jnp.float32(0.1))
    pool, attended, used = run(empty, rows_of(count, width), queries(kv_lora, rope, 2))
    stored = pool.values[table[0]].astype(jnp.float32)
    return np.asarray(stored), np.asarray(attended), np.asarray(used)
