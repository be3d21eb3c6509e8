"""Quantisation of rows to int8 or MXFP4 in one launch; XLA would take two and read twice."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from pallas_kernels import gpu
from pallas_kernels.grouped_matmul.unpack import e2m1_values, e8m0, per_value
from pallas_kernels.quantized.activations import E2M1_MAX, INT8_MAX, ROUND_TO_EVEN_EXPONENT
from pallas_kernels.quantized.formats import GROUP
from pallas_kernels.row_kernel import RowKernel
from pallas_kernels.triton import load, store

_INTEGERS, _INTEGERS_BITS = 1.5 * 2**23, 0x4B400000
"""float32 numbers within 2^22 of _INTEGERS are integers; the second constant is its bits."""


def int8_rows(rows: int, inputs: int) -> RowKernel:
    """Kernel of `quantized.activations.int8_per_token`: int8 [rows, inputs], float32 [rows]."""
    values = jax.ShapeDtypeStruct((rows, inputs), jnp.int8)
    return RowKernel(
        "quantize_int8", _int8_kernel, (values, jax.ShapeDtypeStruct((rows,), jnp.float32))
    )


def mxfp4_rows(rows: int, inputs: int, dtype: DTypeLike) -> RowKernel:
    """Return the kernel of `quantized.activations.mxfp4_packed`: uint8 [rows, inputs / 2] and
    [rows, inputs / 32]. On a GPU that does not multiply MXFP4, it makes dequantised values in
    `dtype` and no scales."""
    return RowKernel("quantize_mxfp4", _mxfp4_kernel, mxfp4_shapes(rows, inputs, dtype))


def mxfp4_shapes(rows: int, inputs: int, dtype: DTypeLike) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the shapes of values and, if there are any, of scales."""
    if not gpu.current().scaled_dot:
        return (jax.ShapeDtypeStruct((rows, inputs), dtype),)
    return (
        jax.ShapeDtypeStruct((rows, inputs // 2), jnp.uint8),
        jax.ShapeDtypeStruct((rows, inputs // GROUP), jnp.uint8),
    )


def to_mxfp4(wide: Array) -> tuple[Array, ...]:
    """Quantise float32 [rows, inputs] inside a kernel, in whole groups, to `mxfp4_shapes`. A group
    with NaN or infinity has a NaN scale."""
    groups = wide.reshape(wide.shape[0], -1, GROUP)
    largest = largest_of(groups)
    bits = jax.lax.bitcast_convert_type(largest, jnp.int32) + ROUND_TO_EVEN_EXPONENT
    exponent = jnp.clip((bits >> 23) - 129, -127, 127)
    shrink = jax.lax.bitcast_convert_type((127 - exponent) << 23, jnp.float32)
    codes = _e2m1_code(groups * shrink[:, :, None]).reshape(wide.shape)
    finite, byte = largest < jnp.inf, exponent + 127
    if not gpu.current().scaled_dot:
        power = jnp.where(finite, e8m0(byte.astype(jnp.uint8)), jnp.nan)
        return (e2m1_values(codes.astype(jnp.uint32)) * per_value(power),)
    pairs = codes.reshape(wide.shape[0], -1, 2) << (4 * jnp.arange(2))[None, None, :]
    packed = jnp.sum(pairs, axis=-1).astype(jnp.uint8)
    return packed, jnp.where(finite, byte, 255).astype(jnp.uint8)


def to_int8(wide: Array, largest: Array) -> tuple[Array, Array]:
    """Quantise float32 [rows, inputs] to int8 and scales in a kernel; largest: magnitudes."""
    factor = largest * (1 / INT8_MAX)
    exact = wide / jnp.where(factor > 0, factor, 1)[:, None]
    rounded = _round(jnp.clip(exact, -INT8_MAX, INT8_MAX)).astype(jnp.int8)
    return rounded, jnp.where(factor < jnp.inf, factor, jnp.nan)


def _int8_kernel(x: Any, values: Any, scale: Any) -> None:
    """Kernel body: a row in int8 with one scale.

    Grid: rows. Blocks: [inputs] padded to a power of two, all of it in registers. Limit: memory
    bandwidth. Units: values * scale is the row, a float32 scale.
    """
    place = jnp.arange(pl.next_power_of_2(x.shape[0]))[None, :]
    inside = place < x.shape[0]
    wide = load(x.at[place], mask=inside, other=0.0).astype(jnp.float32)
    found, factor = to_int8(wide, largest_of(wide))
    store(values.at[place], found, mask=inside)
    store(scale.at[jnp.arange(1)], factor)


def _mxfp4_kernel(x: Any, *out: Any) -> None:
    """Kernel body: a row in MXFP4, or its dequantised values.

    Grid: rows. Blocks: [inputs] padded to a power of two, all of it in registers. Limit: memory
    bandwidth. Units: two e2m1 values a byte, an e8m0 byte for each 32 of them.
    """
    place = jnp.arange(pl.next_power_of_2(x.shape[0]))[None, :]
    wide = load(x.at[place], mask=place < x.shape[0], other=0.0).astype(jnp.float32)
    for ref, found in zip(out, to_mxfp4(wide), strict=True):
        index = jnp.arange(found.shape[1])[None, :]
        store(ref.at[index], found.astype(ref.dtype), mask=index < ref.shape[0])


def largest_of(x: Array) -> Array:
    """Return the largest magnitude along the last axis, or NaN: a GPU's maximum ignores NaN."""
    magnitude = jnp.abs(x)
    return jnp.max(jnp.where(magnitude < jnp.inf, magnitude, jnp.inf), axis=-1)


def _round(x: Array) -> Array:
    """Round to int32, ties to even, for magnitudes below 2^22.

    Pallas's Triton backend has no such operation. A sum near `_INTEGERS` is rounded that way, and
    its last bits are the integer.
    """
    bits = jax.lax.bitcast_convert_type(x + _INTEGERS, jnp.int32)
    return bits - _INTEGERS_BITS


def _e2m1_code(x: Array) -> Array:
    """Return e2m1 codes as int32: sign, two exponent bits, a mantissa bit; ties to even."""
    magnitude = jnp.minimum(jnp.abs(x), E2M1_MAX)
    halves = _round(magnitude * 2)
    ones, twos = _round(magnitude) + 2, _round(magnitude / 2) + 4
    code = jnp.where(magnitude < 2, halves, jnp.where(magnitude < 4, ones, twos))
    return jnp.where((x < 0) & (code > 0), code | 8, code)
