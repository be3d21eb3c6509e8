"""Layouts of transposing reads, which AMD's texts do not specify, and numbers that become float8.

Small kernels run on asymmetric data and are compared with NumPy, so that a wrong layout cannot
cancel out. Numbers are so small that every sum is exact.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tinygrad")

from eagle3_tools.amdgpu.program.compiled import Source, compile_source
from eagle3_tools.amdgpu.program.run import run_program
from eagle3_tools.amdgpu.witness.table import SMALL_KERNEL
from eagle3_tools.aot.amd.machine_code import read_kernels
from eagle3_tools.kernel_cases.case import AMD
from pallas_kernels import triton

PRODUCTS = [
    (jnp.bfloat16, jnp.float32, 16, 64, "ds_read_b64_tr_b16"),
    (jnp.bfloat16, jnp.float32, 32, 64, "ds_read_b64_tr_b16"),
    (jnp.float8_e4m3fn, jnp.float32, 16, 128, "ds_read_b64_tr_b8"),
    (jnp.int8, jnp.int32, 16, 128, "ds_read_b64_tr_b8"),
]
"""Types of elements and sums, rows and columns, length of sums, and the read that is needed."""


def launched(kernel: Callable[..., None], out: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    return triton.launch(kernel, name="small", grid=(1,), out_shape=out, num_warps=1)


def multiply(x: Any, w: Any, out: Any) -> None:
    triton.store(out.at[:, :], triton.dot(triton.load(x.at[:, :]), triton.load(w.at[:, :])))


@pytest.mark.parametrize(("elements", "sums", "size", "depth", "read"), PRODUCTS)
def test_a_kernel_of_one_product_multiplies(
    rocm_compiler: None, elements: Any, sums: Any, size: int, depth: int, read: str
):
    rng, shape = np.random.default_rng(0), jax.ShapeDtypeStruct
    given = [rng.integers(-8, 9, s).astype(elements) for s in ((size, depth), (depth, size))]
    function = launched(multiply, shape((size, size), sums))
    shapes = tuple(shape(array.shape, array.dtype) for array in given)
    program = compile_source(Source("gfx950", function, shapes))
    kernels = (kernel for code in program.objects for kernel in read_kernels(code).values())
    assert read in {i.name for kernel in kernels for i in kernel.code.values()}
    (found,) = run_program(program, given, poison=0x7FC0DEAD).results
    x, w = (array.astype(sums) for array in given)
    np.testing.assert_array_equal(found, x @ w)


def test_the_table_of_witnesses_names_these():
    assert {read for *_, read in PRODUCTS} == set(SMALL_KERNEL)


def narrow(x: Any, out: Any) -> None:
    triton.store(out.at[:], triton.to_fp8(triton.load(x.at[:])))


@pytest.mark.parametrize("arch", AMD)
def test_numbers_become_float8(rocm_compiler: None, arch: str):
    """gfx942 uses integer instructions: there the bits of e4m3fn mean half as much."""
    rng = np.random.default_rng(0)
    edges = np.array([0, -0.0, 448, -448, 2**-9, 2**-10, -(2**-10), 3 * 2**-11, 464, 17, 19, -25])
    x = np.concatenate([edges, rng.normal(0, 60, 122), rng.normal(0, 0.01, 122)])
    x = np.clip(x.astype(np.float32), -448, 448)
    stored = jnp.float8_e4m3fn if arch == "gfx950" else jnp.float8_e4m3fnuz
    function = launched(narrow, jax.ShapeDtypeStruct(x.shape, stored))
    source = Source(arch, function, (jax.ShapeDtypeStruct(x.shape, x.dtype),))
    (found,) = run_program(compile_source(source), [x], poison=0x7FC0DEAD).results
    expected = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    if arch == "gfx942":
        expected = np.where(expected == 0x80, 0, expected)
    np.testing.assert_array_equal(found.view(np.uint8), expected)
