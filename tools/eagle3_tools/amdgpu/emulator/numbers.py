"""Number formats that NumPy lacks, as bits: float8 of both kinds, float4 and bfloat16.

CDNA4 (gfx950) uses the OCP formats e4m3fn and e5m2. CDNA3 (gfx942) uses the fnuz formats, whose
bias is one more and whose only NaN is 0x80. Float4 is e2m1. Source: OCP Microscaling Formats, 5.3,
and CDNA3 ISA, "Data Types".
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import ml_dtypes  # pyright: ignore[reportMissingImports]
import numpy as np

U32, F32 = np.uint32, np.float32
_FLOAT8 = {
    ("gfx950", "fp8"): ml_dtypes.float8_e4m3fn,
    ("gfx950", "bf8"): ml_dtypes.float8_e5m2,
    ("gfx942", "fp8"): ml_dtypes.float8_e4m3fnuz,
    ("gfx942", "bf8"): ml_dtypes.float8_e5m2fnuz,
}
VALUES = {
    key: np.arange(256, dtype=np.uint8).view(kind).astype(F32) for key, kind in _FLOAT8.items()
}
"""(GPU, kind) -> the number of each byte."""
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)


def primitive(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a translator replace the function: arguments may have a `primitive` of their own."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        for argument in arguments:
            if hasattr(argument, "primitive"):
                return argument.primitive(function, arguments)
        return function(*arguments)

    return call


@primitive
def look_up(table: Any, index: Any) -> Any:
    """Return the elements of a table [n] at these places."""
    return table[index]


@primitive
def to_bfloat16(x: Any) -> Any:
    """Round float32 to bfloat16, nearest even; return the bits in uint32."""
    return np.ascontiguousarray(x, F32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(U32)


def to_float8(x: Any, arch: str, kind: str, saturates: bool) -> Any:
    """Round float32 to float8; return the bits in uint32.

    On overflow the result is the largest number with `saturates` (FP16_OVFL), else NaN or infinity.
    """
    form = _FLOAT8[arch, kind]
    most = F32(ml_dtypes.finfo(form).max)
    x = np.where(saturates & ~np.isnan(x), np.clip(x, -most, most), x)
    least, codes = _rounding(arch, kind)
    place = np.where(np.isnan(x), len(least) + 1, np.searchsorted(least, np.abs(x), "right"))
    return look_up(codes, place + np.where(np.signbit(x), len(codes) // 2, 0))


@cache
def _rounding(arch: str, kind: str) -> tuple[Any, Any]:
    """Return how magnitudes are rounded: the least float32 of each code but 0, and the codes.

    The codes are those of numbers below the first of these, from each on, and NaN; positive ones
    before negative ones.
    """
    form = _FLOAT8[arch, kind]

    def rounded(bits: Any) -> Any:
        return bits.view(F32).astype(form).view(np.uint8)

    infinity = U32(0x7F80_0000)
    wanted = np.arange(1, int(rounded(infinity)) + 1)
    low, high = np.zeros(len(wanted), U32), np.full(len(wanted), infinity)
    while (low + U32(1) < high).any():  # The code of `low` is below the wanted one.
        middle = low + (high - low) // U32(2)
        below = rounded(middle) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    magnitudes = np.concatenate([[U32(0)], high, [U32(0x7FC0_0000)]]).astype(U32)
    codes = np.concatenate([rounded(magnitudes), rounded(magnitudes | U32(0x8000_0000))])
    return high.view(F32), codes.astype(U32)
