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


def run(
    compressed: NDArray, implementation: str, pool: NDArray, scale: float | None = None
) -> NDArray:
    cos, sin = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)

    def write(compressed: jax.Array, pool: jax.Array) -> jax.Array:
        return cache_latents(
            compressed,
            Norm(jnp.asarray(WEIGHT), EPS),
            jnp.asarray(cos),
            jnp.asarray(sin),
            pool,
            jnp.asarray(PLACES // PAGE_SIZE),
            jnp.asarray(PLACES % PAGE_SIZE),
            kv_scale=None if scale is None else jnp.float32(scale),
            implementation=implementation,
        )[0]

    return np.asarray(jax.jit(write)(compressed, pool))


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
    pool = run(rows(), implementation, before).reshape(-1, WIDTH)
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
    empty = np.zeros((PAGES, PAGE_SIZE, WIDTH), np.float32)
    pool = run(spoiled, implementation, empty).reshape(-1, WIDTH)
    row = pool[PLACES[1, 2]]
    assert np.isnan(row[KV_LORA:]).all() and (row[:KV_LORA] == 0).all()
    others = np.delete(PLACES.reshape(-1), 6)
    np.testing.assert_array_equal(
        pool[others], run(rows(), implementation, empty).reshape(-1, WIDTH)[others]
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_float8_pools_hold_rows_by_their_scale_and_saturate(implementation: str) -> None:
    large = rows()
    large[0, 0, KV_LORA:] = 1e6
    empty = np.zeros((PAGES, PAGE_SIZE, WIDTH), ml_dtypes.float8_e4m3fn)
    pool = run(large, implementation, empty, 0.5).reshape(-1, WIDTH)[PLACES].astype(np.float32)
    exact = np.clip(expected_rows(large) / 0.5, -448, 448)
    # A value between two of e4m3fn may go to either where float32 and float64 differ.
    np.testing.assert_allclose(pool, exact, rtol=2**-4 + 1e-5, atol=2**-10)
    assert np.abs(pool[0, 0, KV_LORA:]).max() == 448


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_low_rank_of_queries_is_normed_beside_it(implementation: str) -> None:
    low = np.random.default_rng(4).normal(size=(BATCH, Q_LEN, 21)).astype(np.float32)
    weight = np.linspace(-1, 1, 21, dtype=np.float32)
    ones = np.ones((BATCH, Q_LEN, HALF), np.float32)
    pool, normed = jax.jit(
        lambda low, pool: cache_latents(
            jnp.asarray(rows()),
            Norm(jnp.asarray(WEIGHT), EPS),
            jnp.asarray(ones),
            jnp.asarray(0 * ones),
            pool,
            jnp.asarray(PLACES // PAGE_SIZE),
            jnp.asarray(PLACES % PAGE_SIZE),
            q_low=low,
            q_norm=Norm(jnp.asarray(weight), 1e-3),
            implementation=implementation,
        )
    )(low, np.zeros((PAGES, PAGE_SIZE, WIDTH), np.float32))
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
    ones = np.ones((BATCH, Q_LEN, HALF), np.float32)

    def run(implementation: str) -> tuple[Any, jax.Array]:
        _, normed = cache_latents(
            jnp.asarray(rows()),
            Norm(jnp.asarray(WEIGHT), EPS),
            jnp.asarray(ones),
            jnp.asarray(0 * ones),
            jnp.zeros((PAGES, PAGE_SIZE, WIDTH)),
            jnp.asarray(PLACES // PAGE_SIZE),
            jnp.asarray(PLACES % PAGE_SIZE),
            q_low=jnp.asarray(low),
            q_norm=Norm(jnp.linspace(-1, 1, 64), 1e-3),
            q_format=ptpc,
            implementation=implementation,
        )
        assert normed is not None
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
    empty = np.zeros((PAGES, PAGE_SIZE, WIDTH + 1), np.float32)
    with pytest.raises(ValueError, match=r"rows are 24 \+ 10 values; compressed has 34, the pool"):
        run(rows(), "xla", empty)
    with pytest.raises(ValueError, match="needs its scale"):
        run(rows(), "xla", empty[..., 1:].astype(ml_dtypes.float8_e4m3fn))
