"""Four-bit values of a tile of weights, from bytes to numbers, in registers.

The two values of a byte become neighbours by a join: both stay with the thread that loaded them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, UInt8, UInt32

from pallas_kernels.quantized.array import GROUP

_HALF = 0x3F000000
"""The bits of 0.5, the smallest magnitude of e2m1."""


def int4(pairs: UInt8[Array, "rows bytes"]) -> Int[Array, "rows values"]:
    """int8 of two's complement nibbles."""
    signed = pairs.astype(jnp.int8)
    return _joined((signed << 4) >> 4, signed >> 4)


def e2m1(pairs: UInt8[Array, "rows bytes"]) -> Float[Array, "rows values"]:
    """float32 of e2m1 nibbles."""
    return e2m1_values(_joined(pairs & 15, pairs >> 4).astype(jnp.uint32))


def e2m1_values(nibble: UInt32[Array, "rows values"]) -> Float[Array, "rows values"]:
    """float32: exponent and mantissa moved to their places there."""
    code = nibble & 7
    # 0 and 0.5 have no leading one; the others count up from 1.0 by halves of an octave.
    magnitude = jnp.where(code < 2, code * _HALF, (code << 22) + _HALF)
    return jax.lax.bitcast_convert_type(magnitude | (nibble & 8) << 28, jnp.float32)


def e8m0(exponent: UInt8[Array, "rows groups"]) -> Float[Array, "rows groups"]:
    """float32 2^(byte - 127); byte 0 gives 0, which is 2^-127 away."""
    return jax.lax.bitcast_convert_type(exponent.astype(jnp.uint32) << 23, jnp.float32)


def per_value(scale: Num[Array, "rows groups"]) -> Num[Array, "rows values"]:
    """A group's scale for each of its values."""
    rows, groups = scale.shape
    wide = jnp.broadcast_to(scale[:, :, None], (rows, groups, GROUP))
    return wide.reshape(rows, groups * GROUP)


def _joined(even: Num[Array, "rows half"], odd: Num[Array, "rows half"]) -> Num[Array, "rows all"]:
    return jnp.stack([even, odd], axis=-1).reshape(even.shape[0], -1)
