"""Operands of the dense kernels, and the check that the kernels support them."""

import math

import jax.numpy as jnp
from jax import Array

from pallas_kernels import gpu
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.quantized import (
    OneKernel,
    QuantizedArray,
    QuantizedRows,
    Rows,
    dtype_for_gpu,
)
from pallas_kernels.rms_norm import Norm, rms_norm
from pallas_kernels.tile_product import Operand


def as_rows(x: Rows, kernel: OneKernel, norm: Norm | None = None) -> Operand:
    """Return x [rows, inputs] as the kernel multiplies it: quantised if the format says so."""
    if isinstance(x, QuantizedRows):
        of_row = x.scale.shape[-1:] if x.activations == "fp8_group" else ()
        return Operand(x.values.reshape(-1, x.shape[-1]), x.scale.reshape(-1, *of_row))
    flat = x.reshape(-1, x.shape[-1])
    if not isinstance(kernel, QuantizedArray) or kernel.format.activations == "none":
        return Operand(flat if norm is None else rms_norm(flat, norm))
    return quantize(flat, norm, grouped=kernel.format.activations == "fp8_group")


def as_weight(kernel: Array | QuantizedArray) -> Operand:
    """Return a plain or quantised kernel, or a stack of them, as stored."""
    if isinstance(kernel, QuantizedArray):
        return Operand(kernel.values, kernel.scale)
    return Operand(kernel)


def refusal(x: Rows, kernel: OneKernel) -> str | None:
    weights = kernel.values if isinstance(kernel, QuantizedArray) else kernel
    if isinstance(kernel, QuantizedArray) and kernel.format.stored.bits != 8:
        return f"expected float8 weights, got {kernel.format.weights}"
    wanted = dtype_for_gpu(kernel.format) if isinstance(kernel, QuantizedArray) else x.dtype
    if weights.dtype != wanted:
        return (
            f"expected weights in {jnp.dtype(wanted).name} on {gpu.current().arch}, got "
            f"{weights.dtype.name} (pallas_kernels.quantized.for_gpu)"
        )
    if x.dtype not in (jnp.float32, jnp.bfloat16):
        return f"expected x in float32 or bfloat16, got {x.dtype}"
    if weights.ndim != 2 or max(weights.size, math.prod(x.shape)) >= 2**31:
        return f"expected matrices below 2^31 elements, got {x.shape} and {weights.shape}"
    return None
