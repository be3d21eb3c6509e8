"""The compile check for H200 against kernels that are wrong on purpose."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from halved import with_half_the_stages
from jax import Array
from jax.experimental.pallas import triton as plt
from small_kernels import INPUTS, OUTPUTS, ROWS, matmul, small_case

from eagle3_tools.aot.check import Checked, check
from eagle3_tools.aot.expectations import kernel_problems
from eagle3_tools.aot.nvidia.ptx import SmKernel
from eagle3_tools.aot.report import overview
from eagle3_tools.aot.targets import NVIDIA
from eagle3_tools.kernel_cases.case import Case
from pallas_kernels import triton

GOOD = SmKernel("k", 255, 64, 232_448, 256, {"wgmma.bf16.m64n64k16": 8}, {}, {})


def test_a_few_spilled_bytes_are_no_fault_but_more_are():
    assert not kernel_problems(GOOD, "sm_90")
    products = {"mma.f16.m16n8k16": 1}
    bad = replace(GOOD, spill_bytes=68, shared_bytes=232_449, matrix=products)
    assert kernel_problems(bad, "sm_90") == [
        "k: 68 B spilled a thread, at most 64 are allowed",
        "k: 232449 B of 232448 B shared memory",
        "k: f16 matrix instructions",
    ]


def test_the_overview_has_the_worst_of_each_figure():
    few = replace(GOOD, registers=40, spill_bytes=0, shared_bytes=2048, loads={16: 8, 4: 2})
    results = [
        Checked("product a", "sm_90", (), (GOOD,)),
        Checked("product b", "sm_90", (), (few,)),
    ]
    shown = overview(results, NVIDIA)
    worst = {column.header: next(iter(column.cells)) for column in shown.columns}
    assert worst == {
        **{"operation": "product", "arch": "sm_90", "programs": "2", "failed": "0"},
        **{"registers": "255", "spilled B": "64", "shared KiB": "227", "threads": "256"},
        **{"blocks an SM": "1", "16 B loads": "0", "narrower": "2"},
        "matrix instructions": "wgmma.bf16",
    }


def nvidia_case(run: Callable[..., Any], wanted: str = "wgmma.bf16", **changed: Any) -> Case:
    return small_case(run, matrix={"sm_90": wanted}, **changed)


def float8_example(seed: int) -> tuple[Array, Array]:
    """w is turned: the inputs of float8 are contiguous."""
    shapes = (ROWS, INPUTS), (OUTPUTS, INPUTS)
    keys = jax.random.split(jax.random.key(seed))
    x, w = (
        jax.random.normal(k, s).astype(jnp.float8_e4m3fn) for k, s in zip(keys, shapes, strict=True)
    )
    return x, w


def product(dot: Callable[..., Array], rows: int) -> Callable[[Array, Array], Array]:
    """x @ w.T of float8, one program for so many rows and 64 columns."""

    def kernel(x: Any, w: Any, out: Any) -> None:
        def add(step: Array, total: Array) -> Array:
            inputs = step * 128 + jnp.arange(128)[None, :]
            block = (
                triton.load(a.at[jnp.arange(n)[:, None], inputs]) for a, n in ((x, rows), (w, 64))
            )
            return total + dot(*block, trans_b=True)

        total = jax.lax.fori_loop(0, INPUTS // 128, add, jnp.zeros((rows, 64), jnp.float32))
        triton.store(out.at[jnp.arange(rows)[:, None], jnp.arange(64)[None, :]], total)

    out = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
    return lambda x, w: triton.launch(kernel, name="small_matmul", grid=(1,), out_shape=out)(x, w)


def in_float16(x: Array, w: Array, *, trans_b: bool) -> Array:
    """Triton code of a product without a stated accumulator dtype."""
    return plt.dot(x, w, trans_b=trans_b)


@pytest.mark.parametrize("rows", [16, 32, 64])
def test_float8_is_multiplied_by_warp_groups_whatever_the_number_of_rows(
    cuda_compiler: None, rows: int
):
    result = check(
        nvidia_case(product(triton.dot, rows), "wgmma.e4m3", example=float8_example), "sm_90"
    )
    assert result.problems == ()
    assert {name.partition(".m")[0] for name in result.kernels[0].matrix} == {"wgmma.e4m3"}


def test_a_sound_kernel_is_as_it_must_be(cuda_compiler: None):
    result = check(nvidia_case(matmul(64)), "sm_90")
    assert result.problems == ()
    (kernel,) = result.kernels
    assert kernel.name == "small_matmul" and kernel.threads == 128
    assert kernel.shared_bytes >= 64 * 64 * 2 and 1 <= kernel.blocks_per_sm <= 16
    assert kernel.wide_loads > 0 and kernel.registers > 32


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (nvidia_case(matmul(256)), "B spilled a thread"),
        (
            nvidia_case(product(in_float16, 64), "wgmma.e4m3", example=float8_example),
            "f16 matrix instructions",
        ),
        (nvidia_case(matmul(32)), "expected matrix instruction wgmma.bf16, got mma.bf16"),
    ],
    ids=["tile too large", "float8 as float16", "too few rows for a warp group"],
)
def test_a_broken_kernel_fails(cuda_compiler: None, case: Case, problem: str):
    found = check(case, "sm_90").problems
    assert any(problem in text for text in found), found


@pytest.mark.usefixtures("no_jaxtyping")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("fp8_matmul draft_mha.down@tp4 ptpc rows16", "predicted share"),
        ("mla_decode kimi.attention@tp4 q1_8.5k_page64_b64_values", "1 stages, recorded 2"),
        ("logits_argmax kimi.lm_head@tp4 ptpc rows16", "1 stages, recorded 3"),
    ],
)
def test_a_kernel_of_ours_with_half_its_stages_fails(cuda_compiler: None, name: str, problem: str):
    """Also where the model sees another limit."""
    assert problem in with_half_the_stages(name, "sm_90")


def test_a_tile_beyond_shared_memory_is_refused_by_the_compiler(cuda_compiler: None):
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
        check(nvidia_case(matmul(256, depth=512)), "sm_90")
