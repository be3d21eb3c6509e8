"""Convert 8-bit floats for accelerators: gfx942 uses another format than checkpoints.

A byte in e4m3fnuz (gfx942) has half the value that it has in e4m3fn (published, gfx950). So the
bytes stay and the scale doubles. Only 0x80 differs: minus zero in e4m3fn, NaN in e4m3fnuz.
"""

from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from convert.store.parameter import Parameter

ARCHS = ("gfx950", "gfx942")
E4M3FN = np.dtype(ml_dtypes.float8_e4m3fn)
E4M3FNUZ = np.dtype(ml_dtypes.float8_e4m3fnuz)
_MINUS_ZERO = 0x80
_NAN_BITS = 0x7F
_BLOCK = 2**24


def for_arch(parameters: Sequence[Parameter], arch: str) -> tuple[Parameter, ...]:
    """Return the parameters in the formats of `arch`; only X.values in fp8 and X.scale change."""
    if arch not in ARCHS:
        raise ValueError(f"arch must be one of {', '.join(ARCHS)}, got {arch!r}")
    if arch == "gfx950":
        return tuple(parameters)
    scaled = {
        parameter.path.removesuffix("values") + "scale"
        for parameter in parameters
        if parameter.dtype == E4M3FN and parameter.path.endswith(".values")
    }
    return tuple(_converted(parameter, scaled) for parameter in parameters)


def fnuz_values(values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Convert float8_e4m3fn to float8_e4m3fnuz of half the value; ValueError for NaN.

    `out` may be any memory of the same size, even that of `values`.
    """
    out = np.empty(values.shape, E4M3FNUZ) if out is None else out.view(E4M3FNUZ)
    codes, converted = (array.reshape(-1).view(np.uint8) for array in (values, out))
    # In blocks: masks over a whole stack of experts would be as large as the stack.
    for start in range(0, codes.size, _BLOCK):
        block = codes[start : start + _BLOCK]
        if ((block & _NAN_BITS) == _NAN_BITS).any():
            raise ValueError("fp8 values hold NaN (0x7F or 0xFF)")
        converted[start : start + _BLOCK] = np.where(block == _MINUS_ZERO, 0, block)
    return out


def fnuz_scale(scale: np.ndarray) -> np.ndarray:
    """Return the scale for `fnuz_values`, in the same dtype."""
    return scale * scale.dtype.type(2)


def _converted(parameter: Parameter, scaled: set[str]) -> Parameter:
    if parameter.path in scaled:
        return replace(parameter, read=lambda: fnuz_scale(parameter.read()))
    if parameter.path.removesuffix("values") + "scale" in scaled:
        return replace(parameter, dtype=E4M3FNUZ, read=lambda: _read_fnuz(parameter))
    return parameter


def _read_fnuz(parameter: Parameter) -> np.ndarray:
    values = parameter.read()
    try:
        return fnuz_values(values, out=values)
    except ValueError as error:
        raise ValueError(f"{parameter.path}: {error}") from error
