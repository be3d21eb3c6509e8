"""Conversion of float8 weights to the float8 that the GPU multiplies."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from pallas_kernels import gpu
from pallas_kernels.quantized.array import QuantizedArray

_NAN, _NEGATIVE_ZERO = 0x7F, 0x80


def for_gpu(array: QuantizedArray) -> QuantizedArray:
    """Convert weights exactly to the form that `gpu.current()` multiplies with float8 activations.

    gfx942 uses e4m3fnuz, whose bits have half the value. So the bits stay and the scale doubles,
    except for -0, whose bits are e4m3fnuz's NaN. Weights that are widened before the product stay
    unchanged.
    """
    wanted = jnp.dtype(gpu.current().fp8)
    if array.values.dtype != jnp.float8_e4m3fn or wanted == array.values.dtype:
        return array
    if array.format.activations == "none":
        return array
    bits = jax.lax.bitcast_convert_type(array.values, jnp.uint8)
    kept = jnp.where(bits == _NEGATIVE_ZERO, jnp.uint8(0), bits)
    kept = jnp.where(bits & 0x7F == _NAN, jnp.uint8(_NEGATIVE_ZERO), kept)
    values = jax.lax.bitcast_convert_type(kept, wanted)
    return replace(array, values=values, scale=array.scale * 2)
