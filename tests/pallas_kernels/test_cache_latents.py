from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from sweeps import sweep
from test_quantized import random_array

from pallas_kernels import QuantFormat, cache_latents, gpu, matmul
from pallas_kernels.quantized import for_gpu
from pallas_kernels.rms_norm import Norm

IMPLEMENTATIONS = ["xla", "pallas"]
BATCH, Q_LEN, KV_LORA, HALF, PAGES, PAGE_SIZE, EPS = 3, 4, 24, 5, 9, 4, 1e-5
WIDTH = KV_LORA + 2 * HALF
PLACES = np.random.default_rng(0).permutation(np.arange(PAGE_SIZE, PAGES * PAGE_SIZE))
PLACES = PLACES[: BATCH * Q_LEN].reshape(BATCH, Q_LEN).astype(np.int32)


def rows() -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=(BATCH, Q_LEN, WIDTH)).astype(np.float32)


WEIGHT = np.linspace(0.5, 2, KV_LORA, dtype=np.float32)
ANGLES = np.random.default_rng(2).uniform(-3, 3, (BATCH, Q_LEN, HALF))


COS_SIN = [np.asarray(f(ANGLES), np.float32) for f in (np.cos, np.sin)]
EMPTY = np.zeros((PAGES, PAGE_SIZE, WIDTH), np.float32)


def write(
    compressed: Any, pool: Any, implementation: str, scale: Any = None, **queries: Any
) -> tuple[jax.Array, Any]:
    """The pool, and the normed low rank of queries where it is given."""
    places = PLACES // PAGE_SIZE, PLACES % PAGE_SIZE
    options = {"kv_scale": scale, **queries, "implementation": implementation}
    arrays = map(jnp.asarray, (*COS_SIN, pool, *places))
    return cache_latents(
        jnp.asarray(compressed), Norm(jnp.asarray(WEIGHT), EPS), *arrays, **options
    )


def run(
    compressed: NDArray, implementation: str, pool: NDArray = EMPTY, scale: float | None = None
) -> NDArray:
    factor = None if scale is None else jnp.float32(scale)
    call = jax.jit(lambda rows, pool: write(rows, pool, implementation, factor)[0])
    return np.asarray(call(compressed, pool)).reshape(-1, pool.shape[-1])


def expected_rows(compressed: NDArray) -> NDArray[np.float64]:
    wide = compressed.astype(np.float64)
    latent, key = wide[..., :KV_LORA], wide[..., KV_LORA:]
    latent = WEIGHT * latent / np.sqrt((latent**2).mean(-1, keepdims=True) + EPS)
    turned = (key[..., ::2] + 1j * key[..., 1::2]) * np.exp(1j * ANGLES)
    both = np.stack([turned.real, turned.imag], axis=-1).reshape(key.shape)
    return np.concatenate([latent, both], axis=-1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_are_normed_and_rotated_and_nothing_else_is_touched(implementation: str) -> None:
    """Against float64 and complex multiplication; what was there before keeps its bits."""
    before = np.random.default_rng(3).normal(size=(PAGES, PAGE_SIZE, WIDTH)).astype(np.float32)
    pool = run(rows(), implementation, before)
    expected = before.reshape(-1, WIDTH).copy()
    untouched = np.setdiff1d(np.arange(len(expected)), PLACES)
    np.testing.assert_array_equal(pool[untouched], expected[untouched])
    np.testing.assert_allclose(pool[PLACES], expected_rows(rows()), atol=2e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_that_is_not_finite_has_a_key_of_nan_and_harmless_values(
    implementation: str,
) -> None:
    spoiled = rows()
    spoiled[1, 2] = np.nan
    pool = run(spoiled, implementation)
    row = pool[PLACES[1, 2]]
    assert np.isnan(row[KV_LORA:]).all() and (row[:KV_LORA] == 0).all()
    others = np.delete(PLACES.reshape(-1), 6)
    np.testing.assert_array_equal(pool[others], run(rows(), implementation)[others])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_float8_pools_hold_rows_by_their_scale_and_saturate(implementation: str) -> None:
    large = rows()
    large[0, 0, KV_LORA:] = 1e6
    empty = EMPTY.astype(ml_dtypes.float8_e4m3fn)
    pool = run(large, implementation, empty, 0.5)[PLACES].astype(np.float32)
    exact = np.clip(expected_rows(large) / 0.5, -448, 448)
    # A value between two of e4m3fn may go to either where float32 and float64 differ.
    np.testing.assert_allclose(pool, exact, rtol=2**-4 + 1e-5, atol=2**-10)
    assert np.abs(pool[0, 0, KV_LORA:]).max() == 448


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_low_rank_of_queries_is_normed_beside_it(implementation: str) -> None:
    low = np.random.default_rng(4).normal(size=(BATCH, Q_LEN, 21)).astype(np.float32)
    weight = np.linspace(-1, 1, 21, dtype=np.float32)
    norm = Norm(jnp.asarray(weight), 1e-3)
    call = jax.jit(lambda low: write(rows(), EMPTY, implementation, q_low=low, q_norm=norm))
    pool, normed = call(low)
    wide = low.astype(np.float64)
    expected = weight * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(normed, expected, atol=1e-6)
    assert np.asarray(pool).reshape(-1, WIDTH)[PLACES, KV_LORA:].any(-1).all()


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx942"]))
def test_queries_for_a_float8_product_come_quantised(arch: str) -> None:
    """The product of what the kernel leaves is that of the normed rows, on CPU and in the kernel;
    other products refuse them."""
    ptpc = QuantFormat("fp8_channel", "fp8_token")
    low = np.random.default_rng(4).normal(size=(BATCH, Q_LEN, 64)).astype(np.float32)
    weights, _ = random_array(ptpc, 24, 64)
    asked: Any = {"q_low": jnp.asarray(low), "q_norm": Norm(jnp.linspace(-1, 1, 64), 1e-3)}

    def run(implementation: str) -> tuple[Any, jax.Array]:
        _, normed = write(rows(), EMPTY, implementation, **asked, q_format=ptpc)
        fitting = for_gpu(weights) if implementation == "pallas" else weights
        return normed, matmul(normed, fitting, implementation=implementation)

    with gpu.assume(arch):
        rows_made, got = jax.jit(lambda: run("pallas"))()
        assert rows_made.values.dtype == gpu.current().fp8 and rows_made.shape == low.shape
        fitting = for_gpu(weights)
    plain, expected = jax.jit(lambda: run("xla"))()
    assert plain.dtype == jnp.float32
    # A value between two of float8 may go to either where the norms differ in their last bits.
    np.testing.assert_allclose(got, expected, atol=0.02 * float(np.abs(expected).max()))
    np.testing.assert_allclose(matmul(rows_made, fitting), got, atol=1e-5)
    for other in (jnp.ones((64, 8)), random_array(QuantFormat("fp8_channel"), 24, 64)[0]):
        with pytest.raises(ValueError, match="expected a kernel that multiplies fp8_token"):
            matmul(rows_made, other)


@pytest.mark.usefixtures("no_jaxtyping")
def test_what_does_not_fit_is_refused() -> None:
    wide = np.zeros((PAGES, PAGE_SIZE, WIDTH + 1), np.float32)
    with pytest.raises(ValueError, match=r"rows are 24 \+ 10 values; compressed has 34, the pool"):
        run(rows(), "xla", wide)
    with pytest.raises(ValueError, match="needs its scale"):
        run(rows(), "xla", EMPTY.astype(ml_dtypes.float8_e4m3fn))
