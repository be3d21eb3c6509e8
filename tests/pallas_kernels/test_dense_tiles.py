"""Which tiles dense products take, and that loading steps ahead changes no bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import gpu
from pallas_kernels.fp8_matmul.tiles import LARGEST_STAGE, UNDER_WAY, choose_tiles
from pallas_kernels.tile_product import Operand, ProductTiles, launch_tiles, multiply_tile

PLAIN, EIGHT_BIT = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float8_e4m3fn)


def tiles_of(
    arch: str,
    dtype: np.dtype,
    rows: int,
    inputs: int,
    outputs: int,
    *,
    weights: int = 1,
    least: int = 16,
) -> ProductTiles:
    """For float8 or plain weights of this shape."""
    eight_bit = dtype == EIGHT_BIT
    x = jax.ShapeDtypeStruct((rows, inputs), dtype)
    shape = (outputs, inputs) if eight_bit else (inputs, outputs)
    scale = jax.ShapeDtypeStruct((outputs,), jnp.float32) if eight_bit else None
    w = Operand(jax.ShapeDtypeStruct(shape, dtype), scale)
    with gpu.assume(arch):
        return choose_tiles("product", Operand(x), w, weights=weights, least=least)


@pytest.mark.parametrize("inputs", [1024, 1536, 2048, 3072, 7168])
@pytest.mark.parametrize("dtype", [PLAIN, EIGHT_BIT], ids=str)
@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_products_of_65_to_256_rows_take_the_longest_steps_that_fit(
    arch: str, dtype: np.dtype, inputs: int
) -> None:
    for rows, outputs in ((65, 7168), (256, 7168), (256, 40960), (256, 40000)):
        tiles = tiles_of(arch, dtype, rows, inputs, outputs)
        lds = gpu.KNOWN[arch].lds_bytes
        one = dtype.itemsize * (tiles.rows + tiles.columns)

        def fits(step: int, one: int = one, most: int = lds, own: int = tiles.rows) -> bool:
            kept = own * dtype.itemsize * step
            return one * step <= LARGEST_STAGE and kept <= most and inputs % step == 0

        halves = 2 if tiles.ahead > 1 else 1
        assert fits(tiles.step * halves)
        assert not fits(2 * tiles.step * halves)
        assert tiles.stages == 1 or one * tiles.step <= lds
        assert tiles.stages == 1 or outputs % tiles.columns == 0


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_gated_products_keep_within_registers_and_local_memory(arch: str) -> None:
    seen = set()
    for dtype in (PLAIN, EIGHT_BIT):
        for rows in (1, 16, 33, 64, 200, 1024):
            for outputs in (512, 1536, 3072, 4608, 18432):
                tiles = tiles_of(arch, dtype, rows, 7168, outputs, weights=2)
                seen.add(tiles.ahead)
                if tiles.ahead:
                    of_rows = tiles.rows * dtype.itemsize * tiles.step
                    under_way = of_rows + 2 * tiles.columns * dtype.itemsize * tiles.step
                    assert under_way * tiles.ahead <= UNDER_WAY
                    assert of_rows <= gpu.KNOWN[arch].lds_bytes
    assert {0, 3} <= seen


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_a_head_has_64_columns_a_tile_only_where_all_compute_units_get_one(arch: str) -> None:
    for rows in (1, 16, 64):
        for outputs in (20480, 40960, 25008, 50016):
            assert tiles_of(arch, PLAIN, rows, 7168, outputs, least=64).columns == 64
        for outputs in (4000, 8000):
            tiles = tiles_of(arch, PLAIN, rows, 3072, outputs, least=64)
            assert -(-outputs // tiles.columns) >= 250


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
