"""Float8 weights in the float8 that the GPU multiplies."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from pallas_kernels import gpu
from pallas_kernels.quantized.array import QuantizedArray

_NAN, _NEGATIVE_ZERO = 0x7F, 0x80


def for_gpu(array: QuantizedArray) -> QuantizedArray:
    """The same matrix, exactly, as `gpu.current()` multiplies it with float8 activations.

    gfx942 knows e4m3fnuz: bits of half the value, so they stay and the scale doubles, but for -0,
    whose bits are its NaN. Weights that are widened before they are multiplied stay as they are.
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
