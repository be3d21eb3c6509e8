"""Kernels with one product or one conversion, to contain a given instruction and little else.

Loads, stores and layout changes are ordinary instructions, so a wrong layout in the matrix
instruction alone shows in the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eagle3_tools.amdgpu.program.compiled import Source
from pallas_kernels import gpu, triton


@dataclass(frozen=True)
class Product:
    """x @ w or x @ w.T of blocks [rows, depth] and [depth, columns] in one workgroup.

    `kind` is "bf16", "f32", "fp8", "i8", or "fp4" or "fp8_fp4" with a scale for each 32 inputs.
    """

    arch: str
    kind: str
    rows: int
    columns: int
    depth: int
    transposed: bool = False
    warps: int = 1


def product_source(product: Product) -> Source:
    """Return the source of a product; its arguments are those of `operands`."""
    scaled = "fp4" in product.kind
    function = _scaled_product(product) if scaled else _plain_product(product)
    return Source(product.arch, function, operands(product))


def operands(product: Product) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return shapes and dtypes of x, w and, if there are any, the scales of both."""
    rows, columns, depth = product.rows, product.columns, product.depth
    shape = jax.ShapeDtypeStruct
    if "fp4" not in product.kind:
        dtype = element_type(product.arch, product.kind)
        return shape((rows, depth), dtype), shape(_second_shape(product), dtype)
    x = (
        shape((rows, depth // 2), jnp.uint8)
        if product.kind == "fp4"
        else shape((rows, depth), jnp.float8_e4m3fn)
    )
    packed = shape((columns, depth // 2), jnp.uint8)
    scales = (shape((n, depth // 32), jnp.uint8) for n in (rows, columns))
    return x, packed, *scales


def element_type(arch: str, kind: str) -> Any:
    """Return the dtype of elements other than fp4."""
    return {
        "bf16": jnp.bfloat16,
        "f32": jnp.float32,
        "fp8": gpu.KNOWN[arch].fp8,
        "i8": jnp.int8,
    }[kind]


def _second_shape(product: Product) -> tuple[int, int]:
    depth, columns = product.depth, product.columns
    return (columns, depth) if product.transposed else (depth, columns)


def _plain_product(product: Product) -> Callable[..., Array]:
    def kernel(x: Any, w: Any, out: Any) -> None:
        total = triton.dot(_whole(x), _whole(w), trans_b=product.transposed)
        _store(out, total)

    total = jnp.int32 if product.kind == "i8" else jnp.float32
    return _launch(kernel, product, jax.ShapeDtypeStruct((product.rows, product.columns), total))


def _scaled_product(product: Product) -> Callable[..., Array]:
    def kernel(x: Any, w: Any, x_scale: Any, w_scale: Any, out: Any) -> None:
        zeros = jnp.zeros(out.shape, jnp.float32)
        left, right = (_whole(x), _whole(x_scale)), (_whole(w), _whole(w_scale))
        _store(out, triton.dot_mxfp4(*left, *right, zeros))

    out = jax.ShapeDtypeStruct((product.rows, product.columns), jnp.float32)
    return _launch(kernel, product, out)


def _launch(kernel: Any, product: Product, out: jax.ShapeDtypeStruct) -> Callable[..., Array]:
    return triton.launch(
        kernel, name="one_product", grid=(1,), out_shape=out, num_warps=product.warps
    )


def conversion_source(key: tuple[str, str]) -> Source:
    """Return a conversion of 256: "widen" float8 to bfloat16, or "narrow" float32 to float8."""
    arch, direction = key
    narrow, wide = gpu.KNOWN[arch].fp8, jnp.float32
    if direction == "widen":
        wide = jnp.bfloat16

    def kernel(x: Any, out: Any) -> None:
        value = triton.load(x.at[:])
        converted = value.astype(wide) if direction == "widen" else triton.to_fp8(value)
        triton.store(out.at[:], converted)

    types = (narrow, wide) if direction == "widen" else (wide, narrow)
    given, out = (jax.ShapeDtypeStruct((256,), dtype) for dtype in types)
    function = triton.launch(kernel, name="conversion", grid=(1,), out_shape=out, num_warps=1)
    return Source(arch, function, (given,))


def _whole(ref: Any) -> Array:
    return triton.load(ref.at[:, :])


def _store(ref: Any, value: Array) -> None:
    triton.store(ref.at[:, :], value)
