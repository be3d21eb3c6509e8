"""Dequantisation to float32, which defines every weight format."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num, UInt8

from pallas_kernels.quantized.array import BLOCK, GROUP, QuantizedArray

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E8M0_BIAS = 127


def dequantize(array: QuantizedArray) -> Float[Array, "*stack outputs inputs"]:
    """Return value times scale in float32, [*stack, out, in].

    int4_group rounds each product to the scale's dtype, as compressed-tensors does.
    """
    weights, scale = array.format.weights, array.scale
    if weights == "mxfp4":
        values = _e2m1(_nibbles(array.values))
        return jnp.ldexp(values, _per_group(scale.astype(jnp.int32) - E8M0_BIAS))
    values = integer_or_fp8_values(array)
    if weights in ("fp8_channel", "int4_channel"):
        return values * scale[..., None]
    if weights == "fp8_block":
        return values * _per_block(scale, values.shape)
    product = values * _per_group(scale.astype(jnp.float32))
    return product.astype(scale.dtype).astype(jnp.float32)


def integer_or_fp8_values(array: QuantizedArray) -> Float[Array, "*stack outputs inputs"]:
    """Return the stored numbers without their scales as float32; not for mxfp4."""
    if array.format.weights in ("int4_channel", "int4_group"):
        return ((_nibbles(array.values).astype(jnp.int8) ^ 8) - 8).astype(jnp.float32)
    return array.values.astype(jnp.float32)


def _nibbles(pairs: UInt8[Array, "*rows half"]) -> UInt8[Array, "*rows whole"]:
    both = jnp.stack([pairs & 0xF, pairs >> 4], axis=-1)
    return both.reshape(*pairs.shape[:-1], -1)


def _e2m1(nibbles: UInt8[Array, "*rows inputs"]) -> Float[Array, "*rows inputs"]:
    magnitude = jnp.asarray(_E2M1, jnp.float32)[nibbles & 7]
    return jnp.where(nibbles & 8, -magnitude, magnitude)


def _per_group(scale: Num[Array, "*rows groups"]) -> Num[Array, "*rows inputs"]:
    return jnp.repeat(scale, GROUP, axis=-1)


def _per_block(
    scale: Float[Array, "*stack out_blocks in_blocks"], shape: tuple[int, ...]
) -> Float[Array, "*stack outputs inputs"]:
    rows = jnp.repeat(scale, BLOCK, axis=-2)[..., : shape[-2], :]
    return jnp.repeat(rows, BLOCK, axis=-1)[..., : shape[-1]]
