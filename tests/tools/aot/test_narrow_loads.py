"""Whose array a load of one or two bytes is of, by its place among the program's arguments."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from small_kernels import ROWS, example, matmul, small_case

from eagle3_tools.aot.check import check
from eagle3_tools.aot.nvidia.ptx import SmKernel
from eagle3_tools.aot.speed import may_be_narrow, width_problems
from eagle3_tools.aot.triton_calls import TritonCall, triton_calls
from eagle3_tools.kernel_cases.quantized import example_kernel
from pallas_kernels import QuantFormat

HLO = """
ENTRY %main (a_0_.1: bf16[8,64], a_1__values.1: u8[64,32]) -> bf16[8,64] {
  %a_0_.1 = bf16[8,64]{1,0} parameter(0), metadata={op_name="a[0]"}
  %a_1__values.1 = u8[64,32]{1,0} parameter(1), metadata={op_name="a[1].values"}
  %words.1 = u32[64,8]{1,0} bitcast(%a_1__values.1), metadata={op_name="a[1].values"}
  %made.1 = bf16[8,64]{1,0} add(%a_0_.1, %a_0_.1), metadata={op_name="jit(f)/add"}
  ROOT %call.1 = bf16[8,64]{1,0} custom-call(%made.1, %words.1, /*index=2*/%a_0_.1), \
custom_call_target="__gpu$xla.gpu.triton", operand_layout_constraints={bf16[8,64]{1,0}, \
u32[64,8]{1,0}, bf16[8,64]{1,0}}, backend_config={name = "k", grid_x = 1 : i32, grid_y = 1 : i32, \
grid_z = 1 : i32, num_stages = 1 : i32, num_warps = 4 : i32}
}
"""
PTX = """
    ld.param.b64 %rd1, [k_param_0];
    ld.global.b64 %rd2, [ %rd1 + 0 ];
    add.s64 %rd4, %rd3, %rd9;
    ld.global.b8 { %rs1 }, [ %rd4 + 0 ];
    ret;
"""


def test_an_operand_is_the_argument_that_it_is_a_view_of() -> None:
    (call,) = triton_calls(HLO)
    assert call.sources == ("", "a[1].values", "a[0]")
    assert call.shown(1) == "a[1].values: u32[64, 8]"


def test_a_load_whose_array_the_code_does_not_tell_fails() -> None:
    call = TritonCall("k", "k", (1, 1, 1), 4, 2, {0: 64}, 64, ("u8[64]",), "", ("a[0]",))
    kernel = SmKernel("k", 64, 0, 1024, 128, {}, {}, {}, PTX)
    (problem,) = width_problems("sm_90", [(kernel, call)], {"a[0]"})
    assert "1 loads of one or two bytes of an array that its code does not tell" in problem


@pytest.mark.parametrize("space", ["param", "param::entry"])
def test_a_load_is_of_the_array_whose_address_it_was_made_from(space: str) -> None:
    """Newer versions of LLVM say which parameters are a kernel's own."""
    call = TritonCall("k", "k", (1, 1, 1), 4, 2, {0: 64}, 64, ("u8[64]",), "", ("a[1]",))
    ptx = PTX.replace("ld.param", f"ld.{space}").replace("%rd3", "%rd1")
    kernel = SmKernel("k", 64, 0, 1024, 128, {}, {}, {}, ptx)
    (problem,) = width_problems("sm_90", [(kernel, call)], {"a[0]"})
    assert "1 loads of one or two bytes of a[1]: u8[64]" in problem


def test_rows_and_scales_of_groups_may_be_narrow_and_nothing_else() -> None:
    def weights(name: Any) -> Any:
        return example_kernel(jax.random.key(0), 128, 64, QuantFormat(name))

    rows = jax.ShapeDtypeStruct((8, 128), jnp.bfloat16)
    int4, float8 = weights("int4_group"), weights("fp8_channel")
    assert may_be_narrow((rows, int4, float8)) == {"a[0]", "a[1].scale"}
    assert may_be_narrow(((rows, rows), {"w": int4})) == {"a[0][0]", "a[0][1]", "a[1]['w'].scale"}


@pytest.mark.parametrize("arch", ["gfx950", "gfx942", "sm_90"])
@pytest.mark.parametrize("inputs", [2048, 512], ids=["as large as the rows", "small"])
def test_weights_are_told_from_rows_by_place_and_not_by_size(
    request: pytest.FixtureRequest, arch: str, inputs: int
) -> None:
    request.getfixturevalue("cuda_compiler" if arch == "sm_90" else "rocm_compiler")
    shaped, wanted = partial(example, inputs=inputs, outputs=ROWS), {arch: "bf16"}
    for narrow, count in ((True, 1), (False, 0)):
        case = small_case(matmul(64, narrow=narrow), example=shaped, matrix=wanted)
        problems = check(case, arch).problems
        assert len(problems) == count, problems
        assert all(f"a[1]: bf16[{inputs}, {ROWS}]" in problem for problem in problems)
