from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import gpu, triton
from pallas_kernels.tile_product import Operand, ProductTiles, launch_tiles, multiply_tile

INPUTS = 128


@pytest.mark.parametrize(("arch", "factor"), [("gfx950", 1.0), ("gfx942", 0.5)])
def test_to_fp8_rounds_to_the_nearest_even_of_e4m3fn(arch: str, factor: float):
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    between = np.random.default_rng(4).uniform(-448, 448, 4096).astype(np.float32)
    numbers = np.concatenate(
        [every[np.isfinite(every)], between, between * 2.0**-14, [-0.0, -(2.0**-11)]]
    ).astype(np.float32)
    wanted = numbers.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * factor
    with gpu.assume(arch) as assumed:
        got = triton.to_fp8(jnp.asarray(numbers))
    assert got.dtype == assumed.fp8
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), wanted)


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
