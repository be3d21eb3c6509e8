"""Conversion of four-bit weights from packed words to numbers, in registers.

A word holds eight values, the first in its lowest bits. Joins make values adjacent, so that all
eight stay with the thread that loaded their word. Numbers are built from bits, because a GPU
without a bfloat16 instruction converts and rounds slowly. Each is exact or rounded once.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float, Int, Num, UInt8, UInt16, UInt32

from pallas_kernels import gpu
from pallas_kernels.quantized.formats import GROUP

VALUES_PER_WORD = 8
MOST_INPUTS = 2**17
"""Most inputs of an int4_channel row: sums of 16 * value * int8 must fit an int32."""
_HALF = 0x3F000000
"""Bits of 0.5, the smallest magnitude of e2m1."""
_SPLIT = 65536.0
"""2^16: float32 has 16 bits more than bfloat16."""


def as_words(pairs: UInt8[Array, "*rows bytes"]) -> UInt32[Array, "*rows words"]:
    """View the bytes of four-bit values as words of four bytes."""
    return jax.lax.bitcast_convert_type(pairs.reshape(*pairs.shape[:-1], -1, 4), jnp.uint32)


def int4_times_16(words: UInt32[Array, "rows words"]) -> Int[Array, "rows values"]:
    """Unpack two's complement nibbles to int8 in the upper half of a byte: 16 times their value."""
    upper = jnp.uint32(0xF0F0F0F0)
    in_bytes = (words << 4) & upper, words & upper
    each = [in_bytes[k % 2] >> (8 * (k // 2)) for k in range(VALUES_PER_WORD)]
    return _joined([byte.astype(jnp.int8) for byte in each])


def int4_group(
    words: UInt32[Array, "rows words"], scale: Float[Array, "rows groups"]
) -> Float[Array, "rows values"]:
    """Unpack two's complement nibbles times their group's scale, rounded to the scale's dtype.
    Scales are positive, from 2^-122 to 2^108."""
    if scale.dtype == jnp.bfloat16 and gpu.current().arch.startswith("sm_"):
        # NVIDIA GPUs convert integers in the unit of special functions, which is slow, but
        # multiply pairs of bfloat16. (A CPU may leave out their rounding.)
        # bfloat16 of 128 to 143 has the integer in its last bits, here a value plus 8.
        pairs = [((words >> (4 * index)) & 0x000F000F) ^ 0x43084308 for index in range(4)]
        bits = _halves(pairs)
        return (jax.lax.bitcast_convert_type(bits, jnp.bfloat16) - 136) * per_value(scale)
    values = int4_times_16(words).astype(jnp.float32)
    wide = scale.astype(jnp.float32) / 16
    if scale.dtype != jnp.bfloat16 or gpu.current().rounds_to_bfloat16:
        return (values * per_value(wide)).astype(scale.dtype)
    # The product has at most 11 bits. Adding 2^16 times the product makes float32 round it where
    # bfloat16 would. A compiler may fuse products into these sums without changing the result.
    product, large = values * per_value(wide), values * per_value(wide * _SPLIT)
    return _upper_half((product + large) - large)


def mxfp4(
    words: UInt32[Array, "rows words"], scale: UInt8[Array, "rows groups"]
) -> BFloat16[Array, "rows values"]:
    """Unpack e2m1 nibbles times 2^(byte - 127), exactly. Subnormal results may become 0."""
    values = _e2m1_below(words)
    # The power may overflow or underflow float32; its two halves do not.
    byte = scale.astype(jnp.uint32)
    half = byte >> 1
    return _upper_half(values * per_value(_power(half, 70)) * per_value(_power(byte - half, 71)))


def nvfp4(
    words: UInt32[Array, "rows words"], scale: Float[Array, "rows groups"]
) -> Float[Array, "rows values"]:
    """Unpack e2m1 nibbles times their group's scale, which is below 2^114, in float32."""
    group = VALUES_PER_WORD * words.shape[1] // scale.shape[1]
    return _e2m1_below(words) * per_value(scale * 2.0**14, group)


def _halves(words: Sequence[UInt32[Array, "rows words"]]) -> UInt16[Array, "rows values"]:
    """Interleave the halves of words: the lower ones of all, then the upper ones."""
    return _joined([word.astype(jnp.uint16) for word in (*words, *(word >> 16 for word in words))])


def _e2m1_below(words: UInt32[Array, "rows words"]) -> Float[Array, "rows values"]:
    """Unpack e2m1 nibbles to 2^-14 of their values, in float32."""
    # float16 has e2m1's sign, exponent and mantissa bits in sequence, and means 2^-14 of its value.
    pairs = [_two_float16(words, index) for index in range(VALUES_PER_WORD // 2)]
    return jax.lax.bitcast_convert_type(_halves(pairs), jnp.float16).astype(jnp.float32)


def _two_float16(words: Array, index: int) -> Array:
    """Extract nibbles `index` and `index + 4` as two float16 in a word."""
    sign, rest = words << (12 - 4 * index), _shifted(words, 9 - 4 * index)
    return (sign & jnp.uint32(0x80008000)) | (rest & 0x0E000E00)


def _shifted(words: Array, left: int) -> Array:
    return words << left if left >= 0 else words >> -left


def _power(exponent: Array, bias: int) -> Array:
    """Return float32 2^(exponent + bias - 127)."""
    return jax.lax.bitcast_convert_type((exponent + bias) << 23, jnp.float32)


def _upper_half(number: Array) -> Array:
    """Convert float32 that is exactly a bfloat16 to bfloat16."""
    bits = jax.lax.bitcast_convert_type(number, jnp.uint32) >> 16
    return jax.lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.bfloat16)


def e2m1_values(nibble: UInt32[Array, "rows values"]) -> Float[Array, "rows values"]:
    """Convert e2m1 nibbles to float32 by moving exponent and mantissa to their places."""
    code = nibble & 7
    # Codes of 0 and 0.5 have no leading one; the others count up from 1.0 by halves of an octave.
    magnitude = jnp.where(code < 2, code * _HALF, (code << 22) + _HALF)
    return jax.lax.bitcast_convert_type(magnitude | (nibble & 8) << 28, jnp.float32)


def e8m0(exponent: UInt8[Array, "rows groups"]) -> Float[Array, "rows groups"]:
    """Return float32 2^(byte - 127). Byte 0 gives 0, which differs from 2^-127 by that much."""
    return jax.lax.bitcast_convert_type(exponent.astype(jnp.uint32) << 23, jnp.float32)


def per_value(scale: Num[Array, "rows groups"], size: int = GROUP) -> Num[Array, "rows values"]:
    """Repeat each group's scale for all `size` values of the group."""
    rows, groups = scale.shape
    wide = jnp.broadcast_to(scale[:, :, None], (rows, groups, size))
    return wide.reshape(rows, groups * size)


def _joined(parts: Sequence[Num[Array, "rows words"]]) -> Num[Array, "rows values"]:
    """Interleave a power of two of parts: the first of each, then the second of each."""
    while len(parts) > 1:
        half = len(parts) // 2
        pairs = zip(parts[:half], parts[half:], strict=True)
        parts = [jnp.stack(pair, axis=-1) for pair in pairs]
    return parts[0].reshape(parts[0].shape[0], -1)


UNPACK_GROUPS = {"int4_group": int4_group, "mxfp4": mxfp4, "nvfp4": nvfp4}
"""Function that unpacks words with their scales, by the name of a format with scales of groups."""
