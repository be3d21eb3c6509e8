"""The last of 262,144 positions, page ids beyond 2^16, and a pool of more than 2^31 numbers."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.cache import PageView, QuantizedPool, move_rows, view_pages
from pallas_kernels import PagedKV, cache_latents, mla_decode
from pallas_kernels.rms_norm import Norm

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


def test_a_pool_beyond_2_to_31_numbers_is_written_moved_and_read_as_a_small_one(
    pytestconfig: pytest.Config,
) -> None:
    """2.2 GB of float8 with Kimi's rows: a context that lies on both sides of the 2^31st number."""
    if not pytestconfig.getoption("long"):
        pytest.skip("part of the long form")
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
