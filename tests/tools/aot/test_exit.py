"""The way out of Pallas: XLA compiles a kernel that it gets as the text of its Triton IR."""

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
