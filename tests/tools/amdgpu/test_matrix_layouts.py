"""Layouts of matrix instructions and transposing reads, which AMD's texts do not specify.

Small kernels run on asymmetric data and are compared with NumPy, so that a wrong layout cannot
cancel out. Numbers are so small that every sum is exact.
"""

from collections import Counter
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tinygrad")

from amdgpu.matrix_kernels import (
    Product,
    conversion_source,
    element_type,
    operands,
    product_source,
)
from eagle3_tools.amdgpu.program.compiled import CompiledProgram, compile_source
from eagle3_tools.amdgpu.program.run import run_program
from eagle3_tools.amdgpu.witness.table import SMALL_KERNEL
from eagle3_tools.aot.amd.machine_code import read_kernels

POISON = 0x7FC0DEAD
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])

PRODUCTS = [
    (Product("gfx950", "bf16", 16, 16, 64), "v_mfma_f32_16x16x32_bf16 ds_read_b64_tr_b16"),
    (Product("gfx950", "bf16", 32, 32, 64), "v_mfma_f32_32x32x16_bf16 ds_read_b64_tr_b16"),
    (Product("gfx950", "bf16", 64, 64, 64, True, 4), "v_mfma_f32_32x32x16_bf16"),
    (Product("gfx950", "f32", 16, 16, 64), "v_mfma_f32_16x16x4_f32"),
    (Product("gfx950", "f32", 32, 32, 64, True), "v_mfma_f32_32x32x2_f32"),
    (Product("gfx950", "fp8", 16, 16, 256, True), "v_mfma_f32_16x16x128_f8f6f4"),
    (Product("gfx950", "fp8", 16, 16, 128), "v_mfma_f32_16x16x128_f8f6f4 ds_read_b64_tr_b8"),
    (Product("gfx950", "fp8", 32, 32, 128, True), "v_mfma_f32_32x32x64_f8f6f4"),
    (Product("gfx950", "i8", 16, 16, 128, True), "v_mfma_i32_16x16x64_i8"),
    (Product("gfx950", "i8", 16, 16, 128), "v_mfma_i32_16x16x64_i8 ds_read_b64_tr_b8"),
    (Product("gfx950", "fp4", 16, 64, 256, True, 4), "v_mfma_scale_f32_16x16x128_f8f6f4"),
    (Product("gfx950", "fp8_fp4", 16, 64, 256, True, 4), "v_mfma_scale_f32_16x16x128_f8f6f4"),
    (Product("gfx950", "fp4", 32, 64, 256, True, 4), "v_mfma_scale_f32_32x32x64_f8f6f4"),
    (Product("gfx950", "fp8_fp4", 64, 64, 256, True, 4), "v_mfma_scale_f32_32x32x64_f8f6f4"),
    (Product("gfx942", "bf16", 16, 16, 64), "v_mfma_f32_16x16x16_bf16"),
    (Product("gfx942", "bf16", 32, 32, 64), "v_mfma_f32_32x32x8_bf16"),
    (Product("gfx942", "f32", 16, 16, 64), "v_mfma_f32_16x16x4_f32"),
    (Product("gfx942", "f32", 32, 32, 64), "v_mfma_f32_32x32x2_f32"),
    (Product("gfx942", "fp8", 16, 16, 128, True), "v_mfma_f32_16x16x32_fp8_fp8"),
    (Product("gfx942", "fp8", 32, 32, 128, True), "v_mfma_f32_32x32x16_fp8_fp8"),
    (Product("gfx942", "i8", 16, 16, 128, True), "v_mfma_i32_16x16x32_i8"),
]
"""Kernels, and the instructions that each is a reference for."""


def test_the_table_of_witnesses_names_these():
    assert {name for _, mnemonics in PRODUCTS for name in mnemonics.split()} == set(SMALL_KERNEL)


def _mnemonics(program: CompiledProgram) -> Counter[str]:
    kernels = (kernel for code in program.objects for kernel in read_kernels(code).values())
    return Counter(i.name for kernel in kernels for i in kernel.code.values())


def _run(program: CompiledProgram, arguments: list[np.ndarray]) -> np.ndarray:
    (found,) = run_program(program, arguments, poison=POISON).results
    return found


def _plain_arguments(product: Product, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw integers of the type such that float32 holds every sum of products."""
    low, high = (-128, 128) if product.kind == "i8" else (-8, 9)
    dtype = np.dtype(element_type(product.arch, product.kind))
    return [rng.integers(low, high, o.shape).astype(dtype) for o in operands(product)]


def _plain_product(product: Product, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    wide = np.int32 if product.kind == "i8" else np.float32
    x, w = x.astype(wide), w.astype(wide)
    return x @ (w.T if product.transposed else w)


def _scaled_arguments(product: Product, rng: np.random.Generator) -> list[np.ndarray]:
    x, w, *scales = operands(product)
    values = [rng.integers(0, 256, o.shape).astype(np.uint8) for o in (x, w)]
    if product.kind == "fp8_fp4":
        values[0] = rng.integers(-8, 9, x.shape).astype(ml_dtypes.float8_e4m3fn)
    powers = [rng.integers(125, 130, o.shape).astype(np.uint8) for o in scales]
    return values + powers


def _numbers(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return float64 [rows, depth] of float8, or of float4 pairs with the first in the low bits."""
    if values.dtype == np.uint8:
        values = FLOAT4[np.stack([values & 15, values >> 4], -1).reshape(len(values), -1)]
    return values.astype(np.float64) * np.repeat(2.0 ** (scale.astype(int) - 127), 32, axis=1)


@pytest.mark.parametrize("product, mnemonics", PRODUCTS, ids=str)
def test_a_kernel_of_one_product_multiplies(rocm_compiler: None, product: Product, mnemonics: str):
    program = compile_source(product_source(product))
    assert set(mnemonics.split()) <= set(_mnemonics(program))
    rng = np.random.default_rng(0)
    if "fp4" in product.kind:
        arguments = _scaled_arguments(product, rng)
        x, w, x_scale, w_scale = arguments
        expected = _numbers(x, x_scale) @ _numbers(w, w_scale).T
    else:
        arguments = _plain_arguments(product, rng)
        expected = _plain_product(product, *arguments)
    np.testing.assert_array_equal(_run(program, arguments), expected)


@pytest.mark.parametrize("arch, rows", [("gfx942", 16), ("gfx942", 32), ("gfx950", 16)])
def test_a_product_with_one_shows_the_number_that_each_byte_means(
    rocm_compiler: None, arch: str, rows: int
):
    """On gfx942 bytes are e4m3fnuz: half of e4m3fn's numbers, without infinity, -0 or other NaN."""
    product = Product(arch, "fp8", rows, rows, 128, transposed=True)
    dtype = np.dtype(element_type(arch, "fp8"))
    every = np.arange(256, dtype=np.uint8).view(dtype)
    numbers = every[np.isfinite(every.astype(np.float32))]
    x = np.zeros((rows, 128), dtype)
    x[:, :16] = np.resize(numbers, (16, 16)).repeat(rows // 16, axis=0)
    one = np.eye(rows, 128).astype(dtype)
    found = _run(compile_source(product_source(product)), [x, one])
    np.testing.assert_array_equal(found[:, :16], x[:, :16].astype(np.float32))
    nan = np.full((1, 1), 0x80 if arch == "gfx942" else 0x7F, np.uint8).view(dtype)
    x[3, 5] = nan[0, 0]
    found = _run(compile_source(product_source(product)), [x, one])
    assert np.isnan(found[3]).all() and np.isfinite(np.delete(found, 3, axis=0)).all()


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_numbers_become_float8(rocm_compiler: None, arch: str):
    """gfx942 uses integer instructions: there the bits of e4m3fn mean half as much."""
    rng = np.random.default_rng(0)
    edges = np.array([0, -0.0, 448, -448, 2**-9, 2**-10, -(2**-10), 3 * 2**-11, 464, 17, 19, -25])
    x = np.concatenate([edges, rng.normal(0, 60, 122), rng.normal(0, 0.01, 122)])
    x = np.clip(x.astype(np.float32), -448, 448)
    found = _run(compile_source(conversion_source((arch, "narrow"))), [x])
    expected = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    if arch == "gfx942":
        expected = np.where(expected == 0x80, 0, expected)
    np.testing.assert_array_equal(found.view(np.uint8), expected)


def test_float8_becomes_bfloat16(rocm_compiler: None):
    program = compile_source(conversion_source(("gfx950", "widen")))
    assert "v_cvt_scalef32_pk_bf16_fp8" in _mnemonics(program)
    every: Any = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    found = _run(program, [every])
    np.testing.assert_array_equal(found.astype(np.float32), every.astype(np.float32))
    assert found.dtype == jnp.bfloat16
