"""The float8 product's kernels, interpreted, against the contract; and float8 as gfx942 has it."""

from itertools import product

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from compiling import compiled
from sweeps import sweep
from test_quantized import random_array

from pallas_kernels import QuantFormat, QuantizedArray, dequantize, gpu, matmul
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.quantized import for_gpu
from pallas_kernels.quantized.activations import fp8_per_group, fp8_per_token
from pallas_kernels.rms_norm import Norm

FORMATS = [
    QuantFormat("fp8_channel", "fp8_token"),
    QuantFormat("fp8_channel"),
    QuantFormat("fp8_block", "fp8_group"),
    QuantFormat("fp8_block"),
]
ARCHS = ["gfx950", "gfx942"]


def rows(count: int, inputs: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, inputs)).astype(np.float32)


def run(x: np.ndarray | jax.Array, array: QuantizedArray, arch: str = "gfx950") -> np.ndarray:
    with gpu.assume(arch):
        fitting = for_gpu(array)
        return np.asarray(compiled(matmul, implementation="pallas")(x, fitting))


@pytest.mark.parametrize(
    ("format", "arch", "outputs", "inputs"),
    sweep(
        [(*case, *size) for case in product(FORMATS, ARCHS) for size in ((97, 321), (64, 256))],
        [(FORMATS[0], "gfx942", 97, 321), (FORMATS[2], "gfx950", 97, 321)],
    ),
)
def test_equals_the_contract(format: QuantFormat, arch: str, outputs: int, inputs: int) -> None:
    array, _ = random_array(format, outputs, inputs)
    x = rows(5, inputs)
    expected = np.asarray(matmul(jnp.asarray(x), array))
    np.testing.assert_allclose(run(x, array, arch), expected, rtol=1e-5, atol=1e-6)


def test_bfloat16_differs_by_its_rounding_alone() -> None:
    array, _ = random_array(FORMATS[0], 40, 192)
    x = jnp.asarray(rows(20, 192), jnp.bfloat16)
    expected = np.asarray(matmul(x.astype(jnp.float32), array))
    got = run(x, array)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.optimised
@pytest.mark.parametrize("format", sweep(FORMATS, [FORMATS[2]]))
def test_neither_neighbours_nor_their_order_change_a_rows_bits(format: QuantFormat) -> None:
    array, _ = random_array(format, 40, 192)
    x = rows(17, 192)
    expected = run(x, array)
    order = np.random.default_rng(0).permutation(len(x))
    np.testing.assert_array_equal(run(x[order], array), expected[order])
    x[0] *= 1e3
    x[2:] = np.nan
    got = run(x, array)
    np.testing.assert_array_equal(got[1], expected[1])
    assert np.isnan(got[2:]).all()


@pytest.mark.parametrize(
    ("arch", "grouped"), sweep(product(ARCHS, [False, True]), [("gfx950", True), ("gfx942", False)])
)
def test_quantised_rows_are_the_published_rules(arch: str, grouped: bool) -> None:
    x = jnp.asarray(rows(3, 300)).at[1].set(0).at[2, 7].set(jnp.inf)
    with gpu.assume(arch):
        values, scale = jax.jit(lambda a: quantize(a, grouped=grouped))(x)
        assert values.dtype == gpu.current().fp8
    wide = np.repeat(scale, 128, axis=1)[:, :300] if grouped else np.asarray(scale)[:, None]
    got = np.asarray(values).astype(np.float32) * wide
    expected = (
        fp8_per_group(jnp.asarray(x)) if grouped else jnp.multiply(*fp8_per_token(jnp.asarray(x)))
    )
    np.testing.assert_array_equal(got, np.asarray(expected))


def test_norm_and_quantisation_are_those_of_two_steps() -> None:
    x = jnp.asarray(rows(3, 200), jnp.bfloat16)
    weight = jnp.asarray(rows(1, 200, seed=2)[0], jnp.bfloat16)
    wide = np.asarray(x, np.float64)
    normed = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    normed = np.asarray(weight * jnp.asarray(normed, jnp.bfloat16), np.float32)
    values, scale = quantize(x, Norm(weight, 1e-5))
    expected = fp8_per_token(jnp.asarray(normed))
    np.testing.assert_allclose(np.asarray(scale)[:, None], np.asarray(expected[1]), rtol=2**-7)
    got = np.asarray(values, np.float32) * np.asarray(scale)[:, None]
    np.testing.assert_allclose(got, normed, rtol=2**-3, atol=np.abs(normed).max() / 2**9)


def test_every_weight_means_the_same_on_gfx942() -> None:
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).reshape(2, 128)
    array = QuantizedArray(jnp.asarray(every), jnp.asarray([0.5, 3.0]), FORMATS[0])
    with gpu.assume("gfx942"):
        fitting = for_gpu(array)
    assert fitting.values.dtype == jnp.float8_e4m3fnuz
    np.testing.assert_array_equal(np.asarray(dequantize(fitting)), np.asarray(dequantize(array)))
    with gpu.assume("gfx950"):
        assert for_gpu(array) is array


def test_what_the_kernel_cannot_do_is_refused_with_a_reason() -> None:
    x = jnp.ones((2, 64))
    ptpc, _ = random_array(FORMATS[0], 32, 64)
    with (
        gpu.assume("gfx942"),
        pytest.raises(ValueError, match="float8_e4m3fnuz on gfx942, got float8_e4m3fn "),
    ):
        matmul(x, ptpc, implementation="pallas")
    int4, _ = random_array(QuantFormat("int4_channel"), 32, 64)
    with pytest.raises(ValueError, match="expected x in bfloat16 or float32, got float16"):
        matmul(x.astype(jnp.float16), int4, implementation="pallas")
    with pytest.raises(ValueError, match="expected x in float32 or bfloat16, got float16"):
        matmul(x.astype(jnp.float16), ptpc, implementation="pallas")
