"""The way out of Pallas: XLA compiles a kernel that it gets as the text of its Triton IR."""

import jax
import pytest
from small_kernels import example, matmul

from pallas_kernels import gpu, triton
from pallas_kernels.aot import compile_program
from pallas_kernels.case import ARCHS


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_given_as_text_becomes_the_kernel_that_pallas_makes(
    rocm_compiler: None, arch: str
):
    shapes = jax.eval_shape(lambda: example(0))
    with gpu.assume(arch, compiling=True):
        program = triton.triton_ir(matmul(32), *shapes)
        out = jax.eval_shape(matmul(32), *shapes)
    renamed = program | {
        key: program[key].replace("small_matmul", "from_text") for key in ("name", "ir")
    }
    from_text = compile_program(arch, triton.call_triton_ir(renamed, out), *shapes)
    from_pallas = compile_program(arch, matmul(32), *shapes)
    kernels = from_text.kernel("from_text"), from_pallas.kernel("small_matmul")
    figures = [(k.vgprs, k.vgpr_spills, k.scratch_bytes, k.threads, k.matrix) for k in kernels]
    assert figures[0] == figures[1] and figures[0][1] == 0 and figures[0][4]
