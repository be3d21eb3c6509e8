"""Random rows and weights in every format, for the cases of product operations."""

import math

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels import gpu
from pallas_kernels.quantized.array import QuantizedArray
from pallas_kernels.quantized.formats import E8M0_BIAS, QuantFormat


def example_rows(key: Array, rows: int, inputs: int) -> Array:
    """Return bfloat16 activations from N(0, 1)."""
    return jax.random.normal(key, (rows, inputs), jnp.bfloat16)


def example_kernel(
    key: Array, inputs: int, outputs: int, format: QuantFormat | None, *stack: int
) -> Array | QuantizedArray:
    """Return random weights of standard deviation about inputs^-0.5, in the current GPU's float8;
    `stack` adds leading dimensions."""
    deviation = inputs**-0.5
    if format is None:
        return deviation * jax.random.normal(key, (*stack, inputs, outputs), jnp.bfloat16)
    stored = format.stored
    size = (*stack, outputs, inputs // stored.values_per_byte)
    shape = (*stack, *stored.scale_shape(outputs, inputs))
    if stored.bits == 4:
        in_powers = stored.scale_dtype == jnp.uint8
        one = round(E8M0_BIAS + math.log2(deviation / 3)) if in_powers else deviation / 4.6
        scale = jnp.full(shape, one, stored.scale_dtype)
        return QuantizedArray(jax.random.bits(key, size, jnp.uint8), scale, format)
    dtype = jnp.float8_e4m3fn if format.activations == "none" else gpu.current().fp8
    values = jax.random.normal(key, size, jnp.bfloat16).astype(dtype)
    return QuantizedArray(values, jnp.full(shape, deviation, jnp.float32), format)


def matrix_instruction(format: QuantFormat | None, tile_rows: int = 0) -> dict[str, str]:
    """Return the matrix instruction that must do the work, by architecture.

    gfx942 and sm_90 have no MXFP4 and multiply dequantised values. tile_rows: rows of a program's
    tile, if known. From 64 on, a whole warp group of sm_90 multiplies together; float8 is always
    multiplied that way there.
    """
    activations = "none" if format is None else format.activations
    if activations == "int8_token":
        return {"gfx950": "i8", "gfx942": "i8", "sm_90": "s8"}
    if activations.startswith("fp8"):
        return {"gfx950": "f8f6f4", "gfx942": "fp8", "sm_90": "wgmma.e4m3"}
    mxfp4, wide = activations == "mxfp4", tile_rows >= 64
    return {
        "gfx950": "f8f6f4" if mxfp4 else "bf16",
        "gfx942": "bf16",
        "sm_90": "wgmma.bf16" if wide else "bf16",
    }
