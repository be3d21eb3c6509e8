from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels import gpu, triton

SHAPE = jax.ShapeDtypeStruct((64, 128), jnp.float32)


def double(x: Array) -> Array:
    def kernel(x: Any, out: Any) -> None:
        triton.store(out, triton.load(x) * 2)

    block = pl.BlockSpec((16, 128), lambda i: (i, 0))
    return triton.launch(
        kernel,
        name="double",
        grid=(4,),
        in_specs=[block],
        out_specs=block,
        out_shape=SHAPE,
        num_warps=2,
    )(x)


@pytest.fixture(params=list(gpu.KNOWN))
def program(request: pytest.FixtureRequest) -> dict:
    with gpu.assume(request.param, compiling=True):
        return triton.triton_ir(double, SHAPE)


def test_the_text_of_a_kernel_is_what_pallas_would_launch(program: dict):
    assert "tt.func" in program["ir"] and "tt.store" in program["ir"]
    ways = {key: value for key, value in program.items() if key != "ir"}
    grid = {"grid_x": 4, "grid_y": 1, "grid_z": 1}
    assert ways == {"name": "double", "num_warps": 2, "num_stages": 1, **grid}


def test_calling_the_text_lowers_to_the_same_custom_call_without_pallas(program: dict):
    call = triton.call_triton_ir(program, SHAPE)
    lowered = jax.jit(call).trace(SHAPE).lower(lowering_platforms=("rocm",)).as_text()
    assert "__gpu$xla.gpu.triton" in lowered and "pallas" not in lowered
    assert 'name = "double"' in lowered and "num_warps = 2 : i32" in lowered


def test_a_function_that_launches_no_kernel_is_refused():
    with gpu.assume("gfx950", compiling=True), pytest.raises(ValueError, match="got 0"):
        triton.triton_ir(lambda x: x + 1, SHAPE)
