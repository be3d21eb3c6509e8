"""Integer and bit operations of the vector unit.

Sources have the type in AMD's operand tables: uint32, int32 or uint64; 16 bits are in the low half
of 32. Source: CDNA3 and CDNA4 ISA, chapter "Vector ALU Instructions".
"""

from collections.abc import Callable
from typing import Any

import numpy as np

U32, U64, I64 = np.uint32, np.uint64, np.int64


def amount(value: Any, most: int = 31) -> Any:
    """Return a shift amount: hardware uses the low bits only."""
    return value.view(U32) & U32(most)


def _wide(value: Any) -> Any:
    return value.astype(U64)


def _low24(value: Any) -> Any:
    return value & U32(0xFF_FFFF)


def _signed24(value: Any) -> Any:
    return (value.view(U32) << U32(8)).view(np.int32) >> np.int32(8)


def _high_product(a: Any, b: Any) -> Any:
    return (_wide(a) * _wide(b) >> U64(32)).astype(U32)


def _extract(value: Any, first: Any, width: Any) -> Any:
    """Return bits [first, first + width), unsigned."""
    mask = ((U64(1) << _wide(amount(width))) - U64(1)).astype(U32)
    return value >> amount(first) & mask


def _extract_signed(value: Any, first: Any, width: Any) -> Any:
    """Return the same field sign-extended; beyond the source it has copies of the sign."""
    mask = (I64(1) << amount(width).astype(I64)) - 1
    bits = (value.view(np.int32).astype(I64) >> amount(first).astype(I64)) & mask
    sign = np.where(amount(width) > 0, I64(1) << np.maximum(amount(width).astype(I64) - 1, 0), 0)
    return ((bits ^ sign) - sign).astype(np.int32)


def permute_bytes(high: Any, low: Any, choice: Any) -> Any:
    """Permute bytes: a byte of `choice` selects one of eight bytes, a sign, 0 or 255."""
    both = _wide(high) << U64(32) | _wide(low)
    total = U32(0)
    for k in range(4):
        which = choice >> U32(8 * k) & U32(255)
        byte = (both >> (_wide(which & U32(7)) * U64(8)) & U64(255)).astype(U32)
        sign_at = np.select([which == 8, which == 9, which == 10], [15, 31, 47], 63)
        sign = np.where(both >> _wide(sign_at) & U64(1) == 1, U32(255), U32(0))
        byte = np.select([which < 8, which < 12, which == 12], [byte, sign, U32(0)], U32(255))
        total = total | byte.astype(U32) << U32(8 * k)
    return total


def _reverse(value: Any) -> Any:
    for step, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        value = value >> U32(step) & U32(mask) | (value & U32(mask)) << U32(step)
    return value >> U32(16) | value << U32(16)


def _leading_zeros(value: Any) -> Any:
    """Count the zeros above the highest bit; -1 for zero."""
    highest = np.frexp(value.astype(np.float64))[1]
    return np.where(value == 0, -1, 32 - highest).astype(np.int32)


def _truth_table(table: int) -> Callable[[Any, Any, Any], Any]:
    """Make v_bitop3's function: bit k of the table is the result for source bits k."""

    def apply(a: Any, b: Any, c: Any) -> Any:
        terms = [
            (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
            for k in range(8)
            if table >> k & 1
        ]
        total = U32(0) & (a | b | c)
        for term in terms:
            total = total | term
        return total

    return apply


def bit_operation(fields: Any) -> Callable[[Any, Any, Any], Any]:
    """Return the operation of v_bitop3, whose table is in other operations' modifier fields."""
    return _truth_table(fields["omod"] << 6 | fields["abs"] << 3 | fields["neg"])


def _shifted_left(value: Any, by: Any) -> Any:
    return value << amount(by)


INTEGER: dict[str, Callable[..., Any]] = {
    "v_mov_b32": lambda a: a,
    "v_mov_b64": lambda a: a,
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": _reverse,
    "v_ffbh_u32": _leading_zeros,
    "v_bcnt_u32_b32": lambda a, b: np.bitwise_count(a).astype(U32) + b,
    "v_and_b32": np.bitwise_and,
    "v_or_b32": np.bitwise_or,
    "v_xor_b32": np.bitwise_xor,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32": lambda a, b: b << amount(a),
    "v_lshrrev_b32": lambda a, b: b >> amount(a),
    "v_ashrrev_i32": lambda a, b: b >> amount(a).view(np.int32),
    "v_lshlrev_b64": lambda a, b: b << _wide(amount(a, 63)),
    "v_lshrrev_b64": lambda a, b: b >> _wide(amount(a, 63)),
    "v_lshlrev_b16": lambda a, b: b << amount(a, 15),
    "v_lshrrev_b16": lambda a, b: b >> amount(a, 15),
    "v_ashrrev_i16": lambda a, b: b >> amount(a, 15).view(np.int32),
    "v_add_u32": np.add,
    "v_sub_u32": np.subtract,
    "v_subrev_u32": lambda a, b: b - a,
    "v_add_u16": np.add,
    "v_sub_u16": np.subtract,
    "v_subrev_u16": lambda a, b: b - a,
    "v_mul_lo_u16": np.multiply,
    "v_max_u16": np.maximum,
    "v_min_u16": np.minimum,
    "v_max_i16": np.maximum,
    "v_min_i16": np.minimum,
    "v_mul_lo_u32": np.multiply,
    "v_mul_hi_u32": _high_product,
    "v_mul_hi_i32": lambda a, b: (a.astype(I64) * b >> 32).astype(np.int32),
    "v_mul_u32_u24": lambda a, b: _low24(a) * _low24(b),
    "v_mul_i32_i24": lambda a, b: _signed24(a) * _signed24(b),
    "v_mul_hi_u32_u24": lambda a, b: _high_product(_low24(a), _low24(b)),
    "v_max_i32": np.maximum,
    "v_min_i32": np.minimum,
    "v_max_u32": np.maximum,
    "v_min_u32": np.minimum,
    "v_max3_i32": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "v_min3_i32": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "v_max3_u32": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "v_min3_u32": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "v_med3_i32": lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)),
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_lshl_add_u32": lambda a, b, c: _shifted_left(a, b) + c,
    "v_lshl_or_b32": lambda a, b, c: _shifted_left(a, b) | c,
    "v_add_lshl_u32": lambda a, b, c: _shifted_left(a + b, c),
    "v_lshl_add_u64": lambda a, b, c: (a << _wide(amount(b, 7))) + c,
    "v_mad_legacy_u16": lambda a, b, c: a * b + c,
    "v_mad_u32_u24": lambda a, b, c: _low24(a) * _low24(b) + c,
    "v_mad_i32_i24": lambda a, b, c: _signed24(a) * _signed24(b) + c,
    "v_bfe_u32": _extract,
    "v_bfe_i32": _extract_signed,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_perm_b32": permute_bytes,
    "v_alignbit_b32": lambda a, b, c: ((_wide(a) << U64(32) | _wide(b)) >> _wide(amount(c))).astype(
        U32
    ),
}
