from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import Array
from jax.experimental import pallas as pl
from numpy.typing import NDArray

from pallas_kernels import gpu, triton
from pallas_kernels.tile_product import Operand, ProductTiles, launch_tiles, multiply_tile

ROWS, OUTPUTS, INPUTS = 16, 32, 128
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def random_mxfp4(rows: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Values [rows, INPUTS / 2] and scales [rows, INPUTS / 32] of 2^-8 to 2^7."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (rows, INPUTS // 2)).astype(np.uint8)
    return values, rng.integers(119, 135, (rows, INPUTS // 32)).astype(np.uint8)


def decode(values: NDArray[np.uint8], scale: NDArray[np.uint8]) -> NDArray[np.float64]:
    nibbles = np.stack([values & 15, values >> 4], axis=-1).reshape(len(values), -1)
    return E2M1[nibbles] * np.repeat(2.0 ** (scale.astype(int) - 127), 32, axis=1)


def run_mxfp4(x: Array, x_scale: Array | None, values: Array, scale: Array) -> NDArray[np.float32]:
    """One block's product, on top of a total of ones."""

    def kernel(*refs: Any) -> None:
        *inputs, out = refs
        x, *x_scale, values, scale = (triton.load(ref) for ref in inputs)
        total = jnp.ones(out.shape, jnp.float32)
        product = triton.dot_mxfp4(x, x_scale[0] if x_scale else None, values, scale, total)
        triton.store(out, product)

    inputs = [a for a in (x, x_scale, values, scale) if a is not None]
    out = jax.ShapeDtypeStruct((ROWS, OUTPUTS), jnp.float32)
    launched = triton.launch(
        kernel,
        name="product",
        grid=(1,),
        in_specs=[triton.whole(a) for a in inputs],
        out_specs=triton.whole(out),
        out_shape=out,
    )
    with gpu.assume("gfx950"):
        return np.asarray(jax.jit(lambda *a: launched(*a))(*inputs))


@pytest.mark.parametrize("activations", ["mxfp4", "fp8", "bf16"])
def test_dot_mxfp4_is_the_product_of_the_numbers_that_the_bytes_mean(activations: str):
    weights = random_mxfp4(OUTPUTS, seed=1)
    rng = np.random.default_rng(2)
    plain = rng.normal(size=(ROWS, INPUTS)).astype(np.float32)
    if activations == "mxfp4":
        x, x_scale = random_mxfp4(ROWS, seed=3)
        wide = decode(x, x_scale)
    elif activations == "fp8":
        x = plain.astype(ml_dtypes.float8_e4m3fn)
        x_scale = rng.integers(120, 130, (ROWS, INPUTS // 32)).astype(np.uint8)
        wide = x.astype(np.float64) * np.repeat(2.0 ** (x_scale.astype(int) - 127), 32, axis=1)
    else:
        x, x_scale = plain.astype(ml_dtypes.bfloat16), None
        wide = x.astype(np.float64)
    wanted = 1 + wide @ decode(*weights).T
    scales = None if x_scale is None else jnp.asarray(x_scale)
    got = run_mxfp4(jnp.asarray(x), scales, *map(jnp.asarray, weights))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(("arch", "factor"), [("gfx950", 1.0), ("gfx942", 0.5)])
def test_to_fp8_keeps_every_number_that_e4m3fn_has(arch: str, factor: float):
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    numbers = every[np.isfinite(every)]
    with gpu.assume(arch) as assumed:
        got = triton.to_fp8(jnp.asarray(numbers))
    assert got.dtype == assumed.fp8
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), numbers * factor)


@pytest.mark.parametrize(("arch", "factor"), [("gfx950", 1.0), ("gfx942", 0.5)])
def test_to_fp8_rounds_to_the_nearest_even(arch: str, factor: float):
    numbers = np.random.default_rng(4).uniform(-448, 448, 4096).astype(np.float32)
    numbers = np.concatenate([numbers, numbers * 2.0**-14, [-0.0, -(2.0**-11)]]).astype(np.float32)
    wanted = numbers.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * factor
    with gpu.assume(arch):
        got = np.asarray(triton.to_fp8(jnp.asarray(numbers))).astype(np.float32)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("trans_b", [False, True])
def test_dot_of_int8_is_exact_and_of_bf16_is_summed_in_float32(trans_b: bool):
    rng = np.random.default_rng(5)

    def multiply(a: Any, b: Any, out: Any) -> None:
        triton.store(out, triton.dot(triton.load(a), triton.load(b), trans_b=trans_b))

    def run(a: NDArray, b: NDArray, dtype: jax.typing.DTypeLike) -> NDArray:
        out = jax.ShapeDtypeStruct((32, 32), dtype)
        specs = [pl.BlockSpec((32, 32), lambda i: (0, 0))] * 2
        launched = triton.launch(
            multiply, name="m", grid=(1,), in_specs=specs, out_specs=specs[0], out_shape=out
        )
        return np.asarray(launched(jnp.asarray(a), jnp.asarray(b)))

    a, b = rng.integers(-128, 128, (2, 32, 32)).astype(np.int8)
    order = np.transpose if trans_b else np.asarray
    np.testing.assert_array_equal(run(a, b, jnp.int32), a.astype(int) @ order(b).astype(int))
    wide = rng.normal(size=(2, 32, 32)).astype(ml_dtypes.bfloat16)
    wanted = wide[0].astype(np.float64) @ order(wide[1]).astype(np.float64)
    np.testing.assert_allclose(run(wide[0], wide[1], jnp.float32), wanted, rtol=1e-5, atol=1e-5)


def ir_of_float8_product(arch: str, rows: int, columns: int) -> str:
    """Triton's IR of [rows, 128] @ [columns, 128].T, traced for this GPU."""

    def kernel(x: Any, w: Any, out: Any) -> None:
        triton.store(out, triton.dot(triton.load(x), triton.load(w), trans_b=True))

    with gpu.assume(arch, compiling=True) as device:
        shape = jax.ShapeDtypeStruct
        x, w = (shape((size, INPUTS), device.fp8) for size in (rows, columns))
        launched = triton.launch(
            kernel, name="product", grid=(1,), out_shape=shape((rows, columns), jnp.float32)
        )
        return triton.triton_ir(launched, x, w)["ir"]


@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (64, 64), (128, 64), (32, 128)])
def test_h200_adds_every_32_products_of_float8_in_float32_with_the_weights_in_front(
    rows: int, columns: int
):
    (dot,) = (
        line for line in ir_of_float8_product("sm_90", rows, columns).splitlines() if "dot" in line
    )
    assert "maxNumImpreciseAcc = 32" in dot
    assert f": tensor<{columns}x{INPUTS}xf8E4M3FN> *" in dot


@pytest.mark.parametrize(("arch", "columns"), [("sm_90", 32), ("gfx950", 64), ("gfx942", 64)])
def test_elsewhere_a_product_of_float8_says_nothing_of_its_sums(arch: str, columns: int):
    """Fewer columns than a warp group has rows, and AMD's, whose matrix units sum in float32."""
    assert "maxNumImpreciseAcc" not in ir_of_float8_product(arch, 64, columns)


@pytest.mark.parametrize("steps", [2, 5])
def test_steps_loaded_ahead_change_no_bit(steps: int) -> None:
    rng = np.random.default_rng(steps)
    x = jnp.asarray(rng.normal(size=(16, 16 * steps)), jnp.float32)
    w = jnp.asarray(rng.normal(size=(16 * steps, 32)), jnp.float32)

    def product(ahead: int) -> np.ndarray:
        tiles = ProductTiles(16, 16, 16, ahead=ahead)
        return np.asarray(
            launch_tiles(
                multiply_tile, "product", tiles, Operand(x), [Operand(w)], [32], jnp.float32
            )[0][0]
        )

    plain = product(0)
    np.testing.assert_allclose(plain, np.asarray(x) @ np.asarray(w), rtol=1e-4, atol=1e-5)
    for ahead in (2, 3):
        np.testing.assert_array_equal(product(ahead), plain)
