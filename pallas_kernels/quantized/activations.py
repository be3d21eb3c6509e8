"""Quantisation of activations by the published schemes; rows are independent of each other."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt8

from pallas_kernels.quantized.formats import BLOCK, GROUP

FP8_MAX = 448.0
SMALLEST_FP8_SCALE = 1 / (FP8_MAX * 512)
INT8_MAX = 127
E2M1_MAX = 6.0
_MANTISSA_BITS = 23
ROUND_TO_EVEN_EXPONENT = 0x200000


def fp8_per_token(
    x: Float[Array, "*rows inputs"],
) -> tuple[Float[Array, "*rows inputs"], Float[Array, "*rows 1"]]:
    """Quantise rows to the e4m3 grid, with float32 scales of absmax / 448, as vLLM does.

    Values are clipped, then rounded to nearest even; a row of zeros has the smallest scale.
    """
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
    scale = jnp.maximum(largest / FP8_MAX, SMALLEST_FP8_SCALE)
    clipped = jnp.clip(wide * (1 / scale), -FP8_MAX, FP8_MAX)
    return clipped.astype(jnp.float8_e4m3fn).astype(jnp.float32), scale


def fp8_per_group(x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows inputs"]:
    """Quantise x to e4m3 and back to float32, with a scale for every 128 values of a row."""
    blocks = runs(x, BLOCK)
    values, scale = fp8_per_token(blocks)
    return (values * scale).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def int8_per_token(
    x: Float[Array, "*rows inputs"],
) -> tuple[Int[Array, "*rows inputs"], Float[Array, "*rows 1"]]:
    """Quantise rows to int8, rounding half to even, with float32 scales of absmax / 127."""
    wide = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1, keepdims=True) * (1 / INT8_MAX)
    values = jnp.round(wide / jnp.where(scale > 0, scale, 1))
    return jnp.clip(values, -INT8_MAX, INT8_MAX).astype(jnp.int8), scale


def mxfp4_round_trip(x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows inputs"]:
    """Quantise x to MXFP4 and back to float32, with a power-of-two scale for every 32 values.

    The exponent follows Quark's "even" rule: it comes from the group's largest magnitude, rounded
    to one mantissa bit. (OCP Microscaling Formats v1.0; formats as in amd-quark 0.11.)
    """
    rounded, exponent = _mxfp4(x)
    return jnp.ldexp(rounded, exponent).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def mxfp4_packed(
    x: Float[Array, "*rows inputs"],
) -> tuple[UInt8[Array, "*rows half"], UInt8[Array, "*rows groups"]]:
    """Quantise x to MXFP4: e2m1 nibbles, the even element in the low one, and e8m0 scales.

    The inputs are a multiple of 32. A group that is not finite has a NaN scale.
    """
    rounded, exponent = _mxfp4(x)
    magnitude = jnp.abs(rounded)
    linear = jnp.where(magnitude < 2, 2 * magnitude, magnitude + 2)
    code = jnp.where(magnitude < 4, linear, magnitude / 2 + 4).astype(jnp.uint8)
    nibble = jnp.where(rounded < 0, code | 8, code).reshape(*x.shape[:-1], -1, 2)
    finite = jnp.isfinite(rounded).all(-1)
    scale = jnp.where(finite, exponent[..., 0] + 127, 255).astype(jnp.uint8)
    return nibble[..., 0] | nibble[..., 1] << 4, scale


def _mxfp4(
    x: Float[Array, "*rows inputs"],
) -> tuple[Float[Array, "*rows groups 32"], Int[Array, "*rows groups 1"]]:
    """Return e2m1 values and the exponents of their groups."""
    groups = runs(x, GROUP)
    largest = jnp.max(jnp.abs(groups), axis=-1, keepdims=True)
    bits = jax.lax.bitcast_convert_type(largest, jnp.uint32) + ROUND_TO_EVEN_EXPONENT
    exponent = (bits >> _MANTISSA_BITS).astype(jnp.int32) - 127 - 2
    exponent = jnp.clip(exponent, -127, 127)
    return _round_to_e2m1(jnp.ldexp(groups, -exponent)), exponent


def _round_to_e2m1(x: Float[Array, "*rows values"]) -> Float[Array, "*rows values"]:
    """Round to the nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 by magnitude, ties to the even mantissa."""
    magnitude = jnp.abs(x)
    step = jnp.where(magnitude < 2, 0.5, jnp.where(magnitude < 4, 1.0, 2.0))
    rounded = jnp.minimum(jnp.round(magnitude / step) * step, E2M1_MAX)
    return jnp.copysign(rounded, x)


def runs(x: Float[Array, "*rows inputs"], size: int) -> Float[Array, "*rows runs size"]:
    """Split the last axis into runs of `size`, padding the last one with zeros."""
    wide = x.astype(jnp.float32)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % size)]
    return jnp.pad(wide, padding).reshape(*x.shape[:-1], -1, size)
