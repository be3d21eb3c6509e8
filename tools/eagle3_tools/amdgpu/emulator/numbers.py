"""Numbers that have no type in NumPy: float8 of both kinds, float4 and bfloat16, as bits.

CDNA4 (gfx950) reads and writes the OCP forms e4m3fn and e5m2; CDNA3 (gfx942) the forms fnuz, whose
bias is one more and whose only NaN is 0x80. Float4 is e2m1. Source: OCP Microscaling Formats, 5.3,
and CDNA3 ISA, "Data Types".
"""

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
"""(GPU, kind) -> the number that each byte means."""
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)


def to_bfloat16(x: Any) -> Any:
    """Float32 to bfloat16's bits in uint32, rounded to the nearest, ties to even."""
    return np.ascontiguousarray(x, F32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(U32)


def to_float8(x: Any, arch: str, kind: str, saturates: bool) -> Any:
    """Float32 to float8's bits in uint32. saturates: MODE's FP16_OVFL, the largest for what is
    beyond, where else comes NaN (of e4m3) or infinity."""
    form = _FLOAT8[arch, kind]
    x = np.asarray(x, F32)
    if saturates:
        most = F32(ml_dtypes.finfo(form).max)
        x = np.where(np.isnan(x), x, np.clip(x, -most, most))
    return x.astype(form).view(np.uint8).astype(U32)
