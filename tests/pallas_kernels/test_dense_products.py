"""Dense products of the kernels, interpreted, against the contract: single, joint and gated."""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from compiling import compiled
from sweeps import sweep
from test_quantized import random_array

from pallas_kernels import (
    QuantFormat,
    QuantizedArray,
    dequantize,
    gated_matmul,
    gpu,
    joint_matmul,
    matmul,
)
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.partial_sums import total
from pallas_kernels.quantized import Kernel, for_gpu
from pallas_kernels.quantized.activations import fp8_per_group, fp8_per_token
from pallas_kernels.rms_norm import Norm

PTPC, BLOCKS = QuantFormat("fp8_channel", "fp8_token"), QuantFormat("fp8_block", "fp8_group")
W4A8, MXFP4 = QuantFormat("int4_channel", "int8_token"), QuantFormat("mxfp4", "mxfp4")
FLOAT8 = [PTPC, QuantFormat("fp8_channel"), BLOCKS, QuantFormat("fp8_block")]
FOUR_BIT = [MXFP4, QuantFormat("mxfp4"), QuantFormat("int4_group"), W4A8]
ARCHS = ["gfx950", "gfx942"]
INPUTS, OUTPUTS = 160, 70
OPERATIONS = [matmul, joint_matmul, gated_matmul]


def rows(count: int, inputs: int = INPUTS, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, inputs)).astype(np.float32)


def kernel(format: QuantFormat | None, outputs: int = OUTPUTS, inputs: int = INPUTS) -> Kernel:
    if format:
        return random_array(format, outputs, inputs)[0]
    return jnp.asarray(rows(inputs, outputs, outputs))


def run(
    operation: Callable[..., Any], x: Any, *kernels: Kernel, arch: str = "gfx950"
) -> list[np.ndarray]:
    """Its results; joint products that stay in parts are added up."""
    with gpu.assume(arch):
        fitting = [for_gpu(k) if isinstance(k, QuantizedArray) else k for k in kernels]
        return read(compiled(operation, implementation="pallas")(x, *fitting))


def read(found: Any) -> list[np.ndarray]:
    parts = found if isinstance(found, tuple | list) else [found]
    return [np.asarray(total(one)) for one in parts]


def gated_behind_norm(x: Any, *kernels: Kernel, implementation: str) -> jax.Array:
    norm = Norm(jnp.linspace(0.5, 2, x.shape[-1]), 1e-5)
    return gated_matmul(x, *kernels, norm=norm, implementation=implementation)


@pytest.mark.parametrize(
    ("format", "arch", "outputs", "inputs"),
    sweep(
        [
            (format, arch, *size)
            for format, arch in product([None, *FLOAT8, *FOUR_BIT], ARCHS)
            for size in ((OUTPUTS, INPUTS), (64, 256))
        ],
        [
            (None, "gfx950", OUTPUTS, INPUTS),
            (PTPC, "gfx942", OUTPUTS, INPUTS),
            (BLOCKS, "gfx950", OUTPUTS, INPUTS),
            (MXFP4, "gfx950", OUTPUTS, INPUTS),
            (W4A8, "gfx942", OUTPUTS, INPUTS),
        ],
    ),
)
def test_products_are_those_of_the_contract(
    format: QuantFormat | None, arch: str, outputs: int, inputs: int
) -> None:
    """Rows and columns that fill no tile; gated products of four bits behind a norm."""
    x = rows(2 * 5, inputs).reshape(2, 5, inputs)
    one, two = kernel(format, outputs, inputs), kernel(format, outputs + 1, inputs)
    gated = gated_behind_norm if format in FOUR_BIT else gated_matmul
    found = [*run(matmul, x, one, arch=arch), *run(joint_matmul, x, one, two, arch=arch)]
    found += run(gated, x, one, one, arch=arch)
    given = jnp.asarray(x)
    expected = [matmul(given, one), matmul(given, one), matmul(given, two)]
    expected.append(gated(given, one, one, implementation="reference"))
    for ours, theirs in zip(found, expected, strict=True):
        atol = 3e-5 * float(np.abs(theirs).max()) if format in FOUR_BIT else 1e-5
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol)


def test_bfloat16_differs_by_its_rounding_alone() -> None:
    array, x = kernel(PTPC, 40, 192), jnp.asarray(rows(20, 192), jnp.bfloat16)
    (got,) = run(matmul, x, array)
    assert got.dtype == jnp.bfloat16
    expected = np.asarray(matmul(x.astype(jnp.float32), array))
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("format", "operation"),
    sweep(
        product([None, *FLOAT8, *FOUR_BIT], OPERATIONS),
        [(BLOCKS, matmul), (MXFP4, matmul), (None, joint_matmul), (None, gated_matmul)],
    ),
)
def test_neither_neighbours_nor_their_order_change_a_rows_bits(
    format: QuantFormat | None, operation: Callable[..., Any]
) -> None:
    x, kernels = rows(18), [kernel(format)] * (1 if operation is matmul else 2)
    expected = run(operation, x, *kernels)
    order = np.random.default_rng(0).permutation(len(x))
    for got, own in zip(run(operation, x[order], *kernels), expected, strict=True):
        np.testing.assert_array_equal(got, own[order])
    x[0] *= 1e3
    x[2:] = np.nan
    for got, own in zip(run(operation, x, *kernels), expected, strict=True):
        np.testing.assert_array_equal(got[1], own[1])
        assert np.isnan(got[2:]).all()


def test_parts_of_a_product_add_up_to_it() -> None:
    """Against float64; a GPU's tiles give as many parts as there are steps of so few columns."""
    rng = np.random.default_rng(0)
    x, kernels = rng.normal(size=(5, 1024)), [rng.normal(size=(1024, n)) for n in (40, 33)]

    def in_parts(*arrays: jax.Array) -> Any:
        return joint_matmul(*arrays, in_parts=True, implementation="pallas")

    with gpu.assume("gfx950"):
        found = jax.jit(in_parts)(*(jnp.asarray(a, jnp.float32) for a in (x, *kernels)))
    for got, kernel in zip(found, kernels, strict=True):
        assert got.values.shape == (4, 5, kernel.shape[1])
        np.testing.assert_allclose(total(got), x @ kernel, rtol=1e-4, atol=1e-4)
        first = got.values[0]
        np.testing.assert_allclose(first, x[:, :256] @ kernel[:256], rtol=1e-4, atol=1e-4)


@pytest.mark.optimised
def test_on_cpu_they_are_the_separate_products_bit_for_bit() -> None:
    x, gate, up = jnp.asarray(rows(3)), kernel(None), kernel(None, 37)
    np.testing.assert_array_equal(joint_matmul(x, gate, up)[1], matmul(x, up))
    np.testing.assert_array_equal(
        gated_matmul(x, gate, gate), jax.nn.silu(matmul(x, gate)) * matmul(x, gate)
    )


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
    expected = fp8_per_group(x) if grouped else jnp.multiply(*fp8_per_token(x))
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
    array = QuantizedArray(jnp.asarray(every), jnp.asarray([0.5, 3.0]), PTPC)
    with gpu.assume("gfx942"):
        fitting = for_gpu(array)
    assert fitting.values.dtype == jnp.float8_e4m3fnuz
    np.testing.assert_array_equal(np.asarray(dequantize(fitting)), np.asarray(dequantize(array)))
    with gpu.assume("gfx950"):
        assert for_gpu(array) is array


def test_what_does_not_fit_is_refused() -> None:
    x, half, plain = jnp.ones((2, INPUTS)), jnp.ones((2, INPUTS), jnp.float16), kernel(None, 8)
    with (
        gpu.assume("gfx942"),
        pytest.raises(ValueError, match="float8_e4m3fnuz on gfx942, got float8_e4m3fn "),
    ):
        matmul(x, kernel(PTPC), implementation="pallas")
    with pytest.raises(ValueError, match="expected x in bfloat16 or float32, got float16"):
        matmul(half, kernel(W4A8), implementation="pallas")
    with pytest.raises(ValueError, match="expected x in float32 or bfloat16, got float16"):
        matmul(half, kernel(PTPC), implementation="pallas")
    with pytest.raises(ValueError, match=r"expected x \[.., in\], kernels \[in, out\]"):
        joint_matmul(x[:, 1:], plain, plain)
    with pytest.raises(ValueError, match="one shape"):
        gated_matmul(x, plain, kernel(None, 9))
    with pytest.raises(ValueError, match="one format"):
        run(joint_matmul, x, plain, kernel(BLOCKS, 8))
    with pytest.raises(ValueError, match="expected weights in float16 on gfx950, got float32"):
        run(joint_matmul, half, plain)


@pytest.mark.parametrize("inputs", [36, 2**17 + 8])
@pytest.mark.parametrize("operation", [matmul, gated_matmul])
def test_int4_channels_that_a_word_or_an_int32_has_no_room_for_are_refused(
    inputs: int, operation: Callable[..., Any]
) -> None:
    array = QuantizedArray(jnp.zeros((8, inputs // 2), jnp.uint8), jnp.ones(8, jnp.float32), W4A8)
    wanted = f"int4_channel in whole words, 131072 inputs at most, got {inputs}"
    with pytest.raises(ValueError, match=wanted):
        kernels = [array] * (1 if operation is matmul else 2)
        operation(jnp.ones((2, inputs)), *kernels, implementation="pallas")
