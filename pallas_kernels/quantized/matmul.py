"""Product x @ kernel with plain or quantised kernels: the reference implementation."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.quantized.activations import (
    fp8_per_group,
    fp8_per_token,
    int8_per_token,
    mxfp4_round_trip,
    runs,
)
from pallas_kernels.quantized.array import QuantizedArray, QuantizedRows, dequantize
from pallas_kernels.quantized.formats import BLOCK

Kernel = Float[Array, "*stack inputs outputs"] | QuantizedArray
"""Weights of a linear layer: [in, out], or the quantised form."""
Rows = Float[Array, "*rows inputs"] | QuantizedRows
"""Rows that a linear layer multiplies; quantised only if a previous kernel has done so."""
OneKernel = Float[Array, "_ _"] | QuantizedArray
"""One of several kernels, which may differ in size."""


def matmul(x: Rows, kernel: Kernel) -> Float[Array, "*rows outputs"]:
    """Compute x @ kernel in x's dtype.

    For a quantised kernel, the format says how x is quantised: products of quantised activations
    are summed in float32 (int8: in int32) and scaled afterwards; weight-only formats are
    dequantised to x's dtype first. A row's result never depends on the other rows. Raises
    ValueError on rows that are quantised for another format.
    """
    if isinstance(x, QuantizedRows):
        return _quantised_matmul(x, kernel)
    if not isinstance(kernel, QuantizedArray):
        return x @ kernel
    activations = kernel.format.activations
    if activations == "fp8_token":
        values, scale = fp8_per_token(x)
        return _quantised_matmul(QuantizedRows(values, scale[..., 0], x.dtype), kernel)
    if activations == "int8_token":
        values, scale = int8_per_token(x)
        weights = kernel.numbers().astype(jnp.int8)
        product = jnp.matmul(values, weights.T, preferred_element_type=jnp.int32)
        return (product.astype(jnp.float32) * scale * kernel.scale).astype(x.dtype)
    weights = dequantize(kernel)
    if activations == "fp8_group":
        return _rows_times(fp8_per_group(x), weights).astype(x.dtype)
    if activations == "mxfp4":
        return _rows_times(mxfp4_round_trip(x), weights).astype(x.dtype)
    return x @ weights.astype(x.dtype).T


def _quantised_matmul(x: QuantizedRows, kernel: Kernel) -> Float[Array, "*rows outputs"]:
    kernel = kernel_for(x, kernel)
    if x.activations == "fp8_group":
        blocks = runs(x.values.astype(jnp.float32), BLOCK) * x.scale[..., None]
        wide = blocks.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
        return _rows_times(wide, dequantize(kernel)).astype(x.dtype)
    product = _rows_times(x.values.astype(jnp.float32), kernel.numbers())
    return (product * x.scale[..., None] * kernel.scale).astype(x.dtype)


def kernel_for(x: QuantizedRows, kernel: Kernel) -> QuantizedArray:
    """Return the kernel; raise ValueError if it does not multiply rows in x's format."""
    if not isinstance(kernel, QuantizedArray) or kernel.format.activations != x.activations:
        found = kernel.format if isinstance(kernel, QuantizedArray) else kernel.dtype
        raise ValueError(f"matmul: expected a kernel that multiplies {x.activations}, got {found}")
    return kernel


def _rows_times(
    x: Float[Array, "*rows inputs"], weights: Float[Array, "outputs inputs"]
) -> Float[Array, "*rows outputs"]:
    return jnp.matmul(x, weights.T, preferred_element_type=jnp.float32)
