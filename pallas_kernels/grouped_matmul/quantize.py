"""Rows to int8 or MXFP4 in one launch, a program a row; XLA would need two and read twice."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.quantized.activations import E2M1_MAX, INT8_MAX, ROUND_TO_EVEN_EXPONENT
from pallas_kernels.quantized.array import GROUP
from pallas_kernels.triton import launch, load, store


def int8_rows(x: Float[Array, "rows inputs"]) -> tuple[Array, Array]:
    """`quantized.activations.int8_per_token`: int8 [rows, inputs], float32 [rows]."""
    rows, inputs = x.shape
    out_shape = (
        jax.ShapeDtypeStruct((rows, inputs), jnp.int8),
        jax.ShapeDtypeStruct((rows,), jnp.float32),
    )
    return _launch(_int8_kernel, "quantize_int8", x, out_shape)


def mxfp4_rows(x: Float[Array, "rows inputs"]) -> tuple[Array, Array]:
    """`quantized.activations.mxfp4_packed`: uint8 [rows, inputs / 2] and [rows, inputs / 32]."""
    rows, inputs = x.shape
    out_shape = (
        jax.ShapeDtypeStruct((rows, inputs // 2), jnp.uint8),
        jax.ShapeDtypeStruct((rows, inputs // GROUP), jnp.uint8),
    )
    return _launch(_mxfp4_kernel, "quantize_mxfp4", x, out_shape)


def _launch(kernel: Any, name: str, x: Array, out_shape: Any) -> tuple[Array, Array]:
    def row(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec((None, *array.shape[1:]), lambda i: (i,) + (0,) * (array.ndim - 1))

    return launch(
        kernel,
        name=name,
        grid=(len(x),),
        in_specs=[row(x)],
        out_specs=tuple(map(row, out_shape)),
        out_shape=out_shape,
    )(x)


def _int8_kernel(x: Any, values: Any, scale: Any) -> None:
    place = jnp.arange(pl.next_power_of_2(x.shape[0]))
    inside = place < x.shape[0]
    wide = load(x.at[place], mask=inside, other=0.0).astype(jnp.float32)
    factor = _largest(wide) * (1 / INT8_MAX)
    rounded = _round(wide / jnp.where(factor > 0, factor, 1))
    store(values.at[place], jnp.clip(rounded, -INT8_MAX, INT8_MAX).astype(jnp.int8), mask=inside)
    store(scale, jnp.where(factor < jnp.inf, factor, jnp.nan))


def _mxfp4_kernel(x: Any, values: Any, scale: Any) -> None:
    group = jnp.arange(pl.next_power_of_2(scale.shape[0]))
    half = jnp.arange(GROUP // 2)[None, :]
    pair = group[:, None] * (GROUP // 2) + half
    inside = group < scale.shape[0]
    both = jnp.broadcast_to(inside[:, None], pair.shape)
    even, odd = (
        load(x.at[2 * pair + odd], mask=both, other=0.0).astype(jnp.float32) for odd in (0, 1)
    )
    largest = jnp.maximum(_largest(even), _largest(odd))
    bits = jax.lax.bitcast_convert_type(largest, jnp.int32) + ROUND_TO_EVEN_EXPONENT
    exponent = jnp.clip((bits >> 23) - 129, -127, 127)
    shrink = jax.lax.bitcast_convert_type((127 - exponent) << 23, jnp.float32)[:, None]
    packed = _e2m1_code(even * shrink) | _e2m1_code(odd * shrink) << 4
    store(values.at[pair], packed.astype(jnp.uint8), mask=both)
    finite = jnp.where(largest < jnp.inf, exponent + 127, 255)
    store(scale.at[group], finite.astype(jnp.uint8), mask=inside)


def _largest(x: Array) -> Array:
    """Of the magnitudes along the last axis; a GPU's maximum passes over NaN, this one does not."""
    magnitude = jnp.abs(x)
    return jnp.max(jnp.where(magnitude < jnp.inf, magnitude, jnp.inf), axis=-1)


def _round(x: Array) -> Array:
    """To the nearest integer, ties to even; Pallas's Triton backend has no such operation."""
    above = jnp.floor(x + 0.5)
    odd = above - 2 * jnp.floor(above / 2) == 1
    return jnp.where((above == x + 0.5) & odd, above - 1, above)


def _e2m1_code(x: Array) -> Array:
    """int32: sign, two bits of exponent, one of mantissa; ties to the even mantissa."""
    magnitude = jnp.minimum(jnp.abs(x), E2M1_MAX)
    halves = _round(magnitude * 2)
    ones, twos = _round(magnitude) + 2, _round(magnitude / 2) + 4
    code = jnp.where(magnitude < 2, halves, jnp.where(magnitude < 4, ones, twos)).astype(jnp.int32)
    return jnp.where((x < 0) & (code > 0), code | 8, code)
