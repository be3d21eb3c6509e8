from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from sweeps import sweep

from pallas_kernels import HeadNorms, cache_heads, head_squares
from pallas_kernels.rms_norm import Norm

IMPLEMENTATIONS = ["xla", "pallas"]
BATCH, Q_LEN, HEADS, KV_HEADS, DIM, PAGES, PAGE_SIZE, EPS = 3, 2, 4, 2, 14, 9, 4, 1e-5
PLACES = np.random.default_rng(0).permutation(np.arange(PAGE_SIZE, PAGES * PAGE_SIZE))
PLACES = PLACES[: BATCH * Q_LEN].reshape(BATCH, Q_LEN).astype(np.int32)
WEIGHTS = [np.linspace(0.5, 2, heads * DIM, dtype=np.float32) for heads in (HEADS, KV_HEADS)]
PART_OF_A_HEAD, ALL_OF_A_HEAD = 5, 7
"""How many pairs are rotated."""


def rows() -> list[NDArray[np.float32]]:
    """Queries, keys and values of all heads."""
    rng = np.random.default_rng(1)
    shapes = ((BATCH, Q_LEN, heads * DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def angles(half: int) -> NDArray[np.float64]:
    return np.random.default_rng(2).uniform(-3, 3, (BATCH, Q_LEN, half))


def run(
    given: list[NDArray],
    implementation: str,
    half: int = 5,
    pools: tuple[NDArray, NDArray] | None = None,
    normed: bool = True,
    scale: float | None = None,
) -> list[NDArray]:
    """Queries [rows, heads, dim], and both pools [slots, kv_heads, dim]."""
    empty = np.zeros((PAGES, PAGE_SIZE, KV_HEADS, DIM), np.float32)
    tables = (np.asarray(f(angles(half)), np.float32) for f in (np.cos, np.sin))
    factor = None if scale is None else jnp.float32(scale)

    def write(q: jax.Array, k: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        norms = None
        if normed:
            q_norm, k_norm = (Norm(jnp.asarray(weight), EPS) for weight in WEIGHTS)
            squares = head_squares(q, k, implementation=implementation)
            norms = HeadNorms(q_norm, k_norm, squares, 1)
        options: Any = {"norms": norms, "k_scale": factor, "v_scale": factor}
        return cache_heads(q, k, *arrays, **options, implementation=implementation)

    places = PLACES // PAGE_SIZE, PLACES % PAGE_SIZE
    out = jax.jit(write)(*given, *tables, *(pools or (empty, empty)), *places)
    return [np.asarray(x).reshape(-1, *x.shape[2:]) for x in out]


def turned(heads: NDArray, half: int, weight: NDArray | None) -> NDArray[np.float64]:
    """One norm over all heads and complex multiplication, float64: [rows, heads, dim]."""
    wide = heads.astype(np.float64)
    if weight is not None:
        wide = weight * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPS)
    wide = wide.reshape(BATCH, Q_LEN, -1, DIM)
    pairs = wide[..., :half] + 1j * wide[..., half : 2 * half]
    pairs = pairs * np.exp(1j * angles(half))[:, :, None]
    both = np.concatenate([pairs.real, pairs.imag, wide[..., 2 * half :]], axis=-1)
    return both.reshape(BATCH * Q_LEN, -1, DIM)


@pytest.mark.parametrize(
    ("implementation", "half", "normed"),
    sweep(
        product(IMPLEMENTATIONS, (PART_OF_A_HEAD, ALL_OF_A_HEAD), (True, False)),
        [("xla", ALL_OF_A_HEAD, False), ("pallas", PART_OF_A_HEAD, True)],
    ),
)
def test_heads_are_normed_together_and_rotated_and_nothing_else_is_touched(
    implementation: str, half: int, normed: bool
) -> None:
    """Against float64; slots that nobody writes keep their bits."""
    shape, random = (PAGES, PAGE_SIZE, KV_HEADS, DIM), np.random.default_rng(3)
    before = tuple(random.normal(size=shape).astype(np.float32) for _ in range(2))
    q, keys, values = run(rows(), implementation, half, (before[0], before[1]), normed)
    weights = WEIGHTS if normed else (None, None)
    np.testing.assert_allclose(q, turned(rows()[0], half, weights[0]), atol=2e-6)
    expected = [x.reshape(-1, KV_HEADS, DIM).copy() for x in before]
    expected[0][PLACES.reshape(-1)] = turned(rows()[1], half, weights[1])
    expected[1][PLACES.reshape(-1)] = rows()[2].reshape(-1, KV_HEADS, DIM)
    untouched = np.setdiff1d(np.arange(len(keys)), PLACES)
    for got, right in zip((keys, values), expected, strict=True):
        np.testing.assert_array_equal(got[untouched], right[untouched])
        np.testing.assert_allclose(got, right, atol=2e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_that_is_not_finite_has_keys_of_nan_and_harmless_values(implementation: str) -> None:
    spoiled = rows()
    for array in spoiled:
        array[1, 1] = np.nan
    (q, keys, values), (fine, *rest) = run(spoiled, implementation), run(rows(), implementation)
    place, other = PLACES[1, 1], np.delete(PLACES.reshape(-1), 3)
    assert np.isnan(keys[place]).all() and (values[place] == 0).all() and np.isnan(q[3]).all()
    np.testing.assert_array_equal(np.delete(q, 3, 0), np.delete(fine, 3, 0))
    for got, right in zip((keys, values), rest, strict=True):
        np.testing.assert_array_equal(got[other], right[other])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_float8_pools_hold_rows_by_their_scale_and_saturate(implementation: str) -> None:
    large = rows()
    large[2][0, 0] = -1e6
    empty = np.zeros((PAGES, PAGE_SIZE, KV_HEADS, DIM), ml_dtypes.float8_e4m3fn)
    _, keys, values = run(large, implementation, pools=(empty, empty), scale=0.5)
    exact = turned(large[1], 5, WEIGHTS[1]), large[2].reshape(-1, KV_HEADS, DIM)
    for got, right in zip((keys, values), exact, strict=True):
        stored = got[PLACES.reshape(-1)].astype(np.float32)
        # A value between two of e4m3fn may go to either where float32 and float64 differ.
        np.testing.assert_allclose(
            stored, np.clip(right / 0.5, -448, 448), rtol=2**-4 + 1e-5, atol=2**-10
        )
    assert values[PLACES[0, 0]].astype(np.float32).max() == -448


@pytest.mark.parametrize("implementation", sweep(IMPLEMENTATIONS, ["pallas"]))
def test_a_device_norms_its_heads_by_the_squares_of_all(implementation: str) -> None:
    """Half of the heads with the sums of both halves are half of what one device makes."""
    q, k, v = (x.reshape(BATCH, Q_LEN, 2, -1) for x in rows())
    cos, sin = (np.asarray(f(angles(5)), np.float32) for f in (np.cos, np.sin))
    squares = sum(np.stack([(x[:, :, half] ** 2).sum(-1) for x in (q, k)], -1) for half in (0, 1))
    whole = run(rows(), implementation)
    for half in (0, 1):
        q_norm, k_norm = (Norm(jnp.asarray(w.reshape(2, -1)[half]), EPS) for w in WEIGHTS)
        pool = jnp.zeros((PAGES, PAGE_SIZE, KV_HEADS // 2, DIM))
        arrays = *(x[:, :, half] for x in (q, k, v)), cos, sin, pool, pool
        norms = HeadNorms(q_norm, k_norm, jnp.asarray(squares), 2)
        write = jax.jit(partial(cache_heads, norms=norms, implementation=implementation))
        got = write(*arrays, PLACES // PAGE_SIZE, PLACES % PAGE_SIZE)
        for own, all_heads in zip(got, whole, strict=True):
            expected = np.split(all_heads, 2, axis=1)[half]
            np.testing.assert_allclose(np.asarray(own).reshape(expected.shape), expected, atol=1e-6)


@pytest.mark.usefixtures("no_jaxtyping")
def test_what_does_not_fit_is_refused() -> None:
    q, k, v = rows()
    wide = np.zeros((PAGES, PAGE_SIZE, KV_HEADS, DIM + 1), np.float32)
    with pytest.raises(ValueError, match=r"expected rows of 2 heads of 15, as the pool of keys"):
        run([q, k, v], "xla", pools=(wide, wide), normed=False)
    with pytest.raises(ValueError, match="queries of whole heads of 14"):
        run([q[..., 1:], k, v], "xla", normed=False)
    empty = np.zeros((PAGES, PAGE_SIZE, KV_HEADS, DIM), ml_dtypes.float8_e4m3fn)
    with pytest.raises(ValueError, match="needs its scale"):
        run([q, k, v], "xla", pools=(empty, empty))
    with pytest.raises(ValueError, match="expected q and k of the same rows"):
        head_squares(jnp.asarray(q[:1]), jnp.asarray(k))
