"""The compile check against kernels that are wrong on purpose."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array
from small_kernels import matmul, small_case

from eagle3_tools.aot import __main__ as command
from eagle3_tools.aot import targets
from eagle3_tools.aot.amd.code_object import GpuKernel
from eagle3_tools.aot.check import Checked, check
from eagle3_tools.aot.compile import Program
from eagle3_tools.aot.expectations import (
    copy_problems,
    kernel_problems,
    logits_problems,
    matrix_problems,
    temporary_problems,
)
from eagle3_tools.checks.pool import Failure
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import AMD, ARCHS
from pallas_kernels import gpu

GOOD = GpuKernel("k", 300, 0, 900, 0, 65_536, 256, {"mfma.f32.32x32x16.bf16": 8})


def test_spills_into_registers_are_no_fault_but_everything_else_is():
    assert not kernel_problems(replace(GOOD, vgpr_spills=1), "gfx942")
    bad = replace(GOOD, vgprs=513, vgpr_spills=2, scratch_bytes=8, lds_bytes=65_537)
    assert kernel_problems(bad, "gfx942") == [
        "k: 2 VGPR spills, 8 B scratch",
        "k: 513 VGPRs of 512",
        "k: 65537 B of 65536 B LDS",
    ]
    assert not kernel_problems(replace(GOOD, lds_bytes=163_840), "gfx950")


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("mfma.f32.32x32x8f16", True),
        ("mfma.f32.32x32x16.f16", True),
        ("mfma.f32.32x32x8bf16.1k", False),
        ("mfma.f32.32x32x16.bf16", False),
    ],
)
def test_half_precision_is_never_meant(name: str, half: bool):
    problems = kernel_problems(replace(GOOD, matrix={name: 1}), "gfx950")
    assert problems == (["k: f16 matrix instructions"] if half else [])


def test_the_matrix_instruction_must_be_the_expected_one():
    assert not matrix_problems([GOOD], "bf16") and not matrix_problems([], "")
    assert matrix_problems([GOOD], "f8f6f4") == [
        "expected matrix instruction f8f6f4, got mfma.f32.32x32x16.bf16"
    ]
    assert matrix_problems([], "i8") == ["expected matrix instruction i8, got none"]


def program(line: str, temporary_bytes: int = 0) -> Program:
    hlo = f"ENTRY %main (w: u8[2048,1024]) -> bf16[8] {{\n  {line}\n}}\n"
    return Program("gfx950", hlo, [], 0, 0, temporary_bytes)


@pytest.mark.parametrize(
    ("line", "is_written"),
    [
        ("%p = f32[64,5000]{1,0} parameter(0)", False),
        ("%f = f32[64,5000]{1,0} fusion(%p), kind=kLoop, calls=%fused", True),
        ("%t = (s32[], bf16[4,16,5000]{2,1,0}) fusion(%p), kind=kLoop, calls=%fused", True),
        ("%i = s32[64,5000]{1,0} fusion(%p), kind=kLoop, calls=%fused", False),
        ("%i = f32[5000]{0} fusion(%p), kind=kLoop, calls=%fused", False),
        ("%i = f32[64,4096]{1,0} fusion(%p), kind=kLoop, calls=%fused", False),
    ],
)
def test_logits_are_float_rows_over_the_longest_side_of_the_weights(line: str, is_written: bool):
    weights = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8, 5000), (90, 90))]
    assert bool(logits_problems(program(line), weights)) == is_written


@pytest.mark.parametrize(
    ("line", "is_copy"),
    [
        ("%p = u8[2048,1024]{1,0} parameter(0)", False),
        ("%b = u8[1024,2048]{1,0} bitcast(%p)", False),
        ("%c = u8[1024,2048]{1,0} copy(%p)", True),
        ("%f = f32[2048,2048]{1,0} fusion(%p), kind=kLoop, calls=%fused", True),
        ("%t = (s32[], bf16[2,1024,1024]{2,1,0}) fusion(%p), kind=kLoop, calls=%fused", True),
        ("%y = bf16[2048,256]{1,0} fusion(%p), kind=kLoop, calls=%fused", False),
    ],
)
def test_a_result_as_large_as_the_weight_is_a_copy_of_it(line: str, is_copy: bool):
    """A byte may hold two values, so twice its size counts as well; small arguments don't."""
    weight, small = ((2048, 1024), jnp.uint8), ((2048, 256), jnp.bfloat16)
    arguments = [jax.ShapeDtypeStruct(*array) for array in (weight, small)]
    assert bool(copy_problems(program(line), arguments)) == is_copy


def test_temporaries_may_not_be_as_large_as_a_large_weight():
    weight = jax.ShapeDtypeStruct((1 << 27,), jnp.uint8)
    nothing = "%p = u8[8]{0} parameter(0)"
    assert not temporary_problems(program(nothing, 1 << 26), [weight])
    beyond = program(nothing, (1 << 26) + 1)
    assert temporary_problems(beyond, [weight]) == ["64 MiB of temporaries"]


def test_only_what_was_asked_for_is_compiled():
    both = small_case(matmul(64))
    prefill = replace(both, variant="prefill", decode=False)
    whole = replace(both, shape="small@tp1")
    scaled = replace(both, variant="mxfp4", matrix={"gfx950": "f8f6f4"})
    cases = [both, prefill, whole, scaled]
    short = command.chosen(cases, AMD, "", True)
    assert short == [(both.name, "gfx950"), (both.name, "gfx942")]
    assert len(command.chosen(cases, AMD, "", False)) == 7
    assert command.chosen(cases, ["gfx942"], "prefill", False) == [(prefill.name, "gfx942")]


def test_the_short_form_has_one_case_of_each_operation_with_most_rows():
    short = dict.fromkeys(name for name, _ in command.chosen(all_cases(), ARCHS, "", True))
    assert sorted(name.split()[0] for name in short) == sorted({c.operation for c in all_cases()})
    assert any(re.match(r"fp8_matmul \S+@tp8 .*rows64", name) for name in short)


def test_a_crash_is_a_failed_line_and_decides_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def results(*_: Any, **__: Any) -> list[Checked | Failure]:
        good = Checked("small_matmul small@tp4 bf16", "gfx950", (), (GOOD,), 0, 0.5)
        return [good, Failure("its process was ended by SIGSEGV", "Check failed")][:wanted]

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(targets.AMD, "is_installed", lambda: True)
    monkeypatch.setattr(targets.NVIDIA, "is_installed", lambda: False)
    monkeypatch.setattr(command, "all_cases", lambda: [small_case(matmul(64))])
    monkeypatch.setattr("eagle3_tools.checks.check.run_each", results)
    wanted = 2
    assert command.main(["--json", str(tmp_path / "found.json")]) == 1
    printed = capsys.readouterr().out
    assert "FAILED small_matmul small@tp4 bf16 gfx942: its process was ended by SIGSEGV" in printed
    assert "2 programs with 1 kernels" in printed
    first, second = json.loads((tmp_path / "found.json").read_text())
    assert first["kernels"][0]["vgprs"] == 300 and second["problems"]
    wanted = 1
    assert command.main(["--arch", "gfx950"]) == 0
    assert command.main(["--only", "no such case"]) == 2
    monkeypatch.setattr(targets.AMD, "is_installed", lambda: False)
    assert command.main([]) == 2


@pytest.mark.parametrize("arch", AMD)
def test_a_sound_kernel_is_as_it_must_be(rocm_compiler: None, arch: str):
    result = check(small_case(matmul(64)), arch)
    assert result.problems == ()
    (kernel,) = result.kernels
    assert kernel.name == "small_matmul" and kernel.threads == 256
    assert (
        kernel.lds_bytes >= 64 * 64 * 2
        and 1 <= kernel.waves_per_simd(gpu.KNOWN[arch].lds_bytes) <= 8
    )


@pytest.mark.parametrize("arch", AMD)
def test_namesakes_in_a_program_have_facts_of_their_own_and_later_programs_the_right_ones(
    rocm_compiler: None, arch: str
):
    shallow, deep = matmul(32, 32), matmul(32, 256)

    def local_memory(run: Callable[..., Any]) -> list[int]:
        found = check(small_case(run), arch, facts=True).facts
        assert found
        return [kernel.lds for kernel in found.kernels]

    both = local_memory(lambda x, w: (shallow(x, w), deep(x, w)))
    (small,), (large,) = local_memory(shallow), local_memory(deep)
    assert sorted(both) == [small, large] and small < large


def dequantise(x: Array, w: Array) -> Array:
    """Dequantise to float32, which a weight in memory must not become."""
    return matmul(64)(x, (w.astype(jnp.float32).T * 2).astype(x.dtype).T)


@pytest.mark.parametrize(
    ("run", "changed", "problem"),
    [
        (matmul(256), {}, "VGPR spills"),
        (matmul(64), {"matrix": {"gfx942": "fp8"}}, "expected matrix instruction fp8"),
        (matmul(64), {"kernels": ("other_name",)}, "no kernel other_name, only small_matmul"),
        (dequantise, {}, "as large as a weight"),
    ],
    ids=["tile too large", "wrong instruction", "another kernel", "a copy of the weight"],
)
def test_a_broken_kernel_fails(
    rocm_compiler: None, run: Callable[..., Array], changed: dict[str, Any], problem: str
):
    result = check(small_case(run, **changed), "gfx942")
    assert any(problem in found for found in result.problems), result.problems


def test_a_tile_beyond_local_memory_is_refused_by_the_compiler(rocm_compiler: None):
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
        check(small_case(matmul(256, depth=512)), "gfx942")
