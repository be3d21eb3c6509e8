"""The way out of Pallas: XLA compiles a kernel that it gets as the text of its Triton IR."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from eagle3_tools.aot import compile_program
from eagle3_tools.kernel_cases.case import AMD
from eagle3_tools.kernel_cases.shapes import MATRICES
from pallas_kernels import gpu, triton
from pallas_kernels.fp8_matmul.tiles import choose_tiles
from pallas_kernels.tile_product import Operand, launch_tiles, multiply_tile

O_PROJ = next(matrix for matrix in MATRICES if matrix.name == "kimi.o_proj@tp8")
ROWS = 64


def copy_row(x: Any, _: Any, pool: Any) -> None:
    triton.store(pool.at[1, jnp.arange(64)], triton.load(x.at[jnp.arange(64)]))


def test_text_writes_in_place_what_its_kernel_writes_in_place():
    """Rows that the kernel leaves alone keep their values, as in a pool of pages."""
    x, pool = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64,), (4, 64)))
    kernel = triton.launch(
        copy_row, name="copy_row", grid=(1,), out_shape=pool, input_output_aliases={1: 0}
    )
    with gpu.assume("gfx950", compiling=True):
        program = triton.triton_ir(kernel, x, pool)
        text = jax.jit(triton.call_triton_ir(program, pool)).trace(x, pool)
    assert program["aliases"] == {1: 0}
    assert "operand_index = 1" in text.lower(lowering_platforms=("rocm",)).as_text()


def product(x: Operand, w: Operand) -> jax.Array:
    tiles = choose_tiles("fp8_matmul", x, w)
    (out,) = launch_tiles(multiply_tile, "fp8_matmul", tiles, x, [w], [w.outputs], jnp.bfloat16)
    return out


@pytest.mark.parametrize("arch", AMD)
def test_a_kernel_given_as_text_becomes_the_kernel_that_pallas_makes(
    rocm_compiler: None, arch: str
):
    """The float8 product at a published shape: tiles, figures and instructions are the same."""
    shape = jax.ShapeDtypeStruct
    with gpu.assume(arch, compiling=True) as device:
        x, w = (
            Operand(shape((size, O_PROJ.inputs), device.fp8), shape((size,), jnp.float32))
            for size in (ROWS, O_PROJ.outputs)
        )
        program = triton.triton_ir(product, x, w)
        out = jax.eval_shape(product, x, w)
    renamed = program | {
        key: program[key].replace("fp8_matmul", "from_text") for key in ("name", "ir")
    }
    arrays = jax.tree.leaves((x, w))
    from_text = compile_program(arch, triton.call_triton_ir(renamed, out), *arrays)
    from_pallas = compile_program(arch, product, x, w)
    kernels = from_text.kernel("from_text"), from_pallas.kernel("fp8_matmul")
    figures = [(k.vgprs, k.vgpr_spills, k.scratch_bytes, k.threads, k.matrix) for k in kernels]
    assert figures[0] == figures[1] and figures[0][1] == 0 and figures[0][4]
