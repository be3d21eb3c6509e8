"""Float32 operations of the vector unit.

Sources are float32 of shapes that broadcast, unless stated otherwise. Transcendental functions are
exact here; hardware may err by 1 ulp. Source: CDNA3, CDNA4 ISA, "Vector ALU Instructions".
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.numbers import primitive

F32, F64, U32 = np.float32, np.float64, np.uint32
_LEAST_NORMAL = 2.0**-126
_HALFWAY, _BELOW = np.uint64(0x1000_0000), np.uint64(0x1FFF_FFFF)


@primitive
def fma(a: Any, b: Any, c: Any) -> Any:
    """Compute a * b + c, rounded once.

    The product is exact in float64. If the sum is inexact and may lie halfway between two float32,
    its last bit is made odd, so that the second rounding goes the right way.
    """
    product, addend = np.multiply(a, b, dtype=F64), c.astype(F64)
    total = product + addend
    # A denormal result loses more bits, so any sum may lie halfway.
    halfway = (total.view(np.uint64) & _BELOW) == _HALFWAY
    halfway = halfway | (np.abs(total) < _LEAST_NORMAL)
    if halfway.any():
        back = total - product
        lost = (product - (total - back)) + (addend - back)
        even = total.view(np.uint64) & np.uint64(1) == 0
        inexact = halfway & even & (lost != 0) & np.isfinite(total)
        away = np.where(lost > 0, np.inf, -np.inf)
        total = np.where(inexact, np.nextafter(total, away), total)
    return total.astype(F32)


def exponent(x: Any) -> Any:
    """Return the biased exponent of float32 in int64."""
    return (x.view(U32) >> U32(23) & U32(255)).astype(np.int64)


def _wide(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(x.astype(F64)).astype(F32)


def _signals(x: Any) -> Any:
    """Mark signalling NaNs."""
    return np.isnan(x) & (x.view(U32) >> U32(22) & U32(1) == 0)


def _maximum(a: Any, b: Any) -> Any:
    """Compute IEEE 754-2008's maxNum, which MODE's bit IEEE selects.

    A number wins over a quiet NaN, a signalling NaN over a number, and +0 over -0.
    """
    larger = np.fmax(a, b)
    signalling = _signals(a) | _signals(b)
    if signalling.any():
        larger = np.where(signalling, F32(np.nan), larger)
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, np.where(np.signbit(a) & np.signbit(b), F32(-0.0), F32(0)), larger)


def _minimum(a: Any, b: Any) -> Any:
    return -_maximum(-a, -b)


def _median(a: Any, b: Any, c: Any) -> Any:
    """Return the middle of three; the smallest number if one is NaN."""
    middle = _maximum(_minimum(a, b), _minimum(_maximum(a, b), c))
    with_nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(with_nan, _minimum(_minimum(a, b), c), middle)


def _propagating(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Make IEEE's maximum or minimum of three, in which NaN wins."""

    def apply(a: Any, b: Any, c: Any) -> Any:
        with_nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
        return np.where(with_nan, F32(np.nan), function(function(a, b), c))

    return apply


def _class(x: Any, mask: Any) -> Any:
    """Test x for the classes in the mask: bits 0 to 9 are signalling NaN to +infinity."""
    bits, negative = x.view(U32), np.signbit(x)
    quiet = bits >> U32(22) & U32(1) == 1
    zero, denormal = x == 0, (exponent(x) == 0) & (x != 0)
    normal = np.isfinite(x) & ~zero & ~denormal
    nan, infinite = np.isnan(x), np.isinf(x)
    classes = (
        *(nan & ~quiet, nan & quiet, infinite & negative, normal & negative),
        *(denormal & negative, zero & negative, zero & ~negative, denormal & ~negative),
        *(normal & ~negative, infinite & ~negative),
    )
    return sum((c.astype(U32) << U32(k) for k, c in enumerate(classes)), U32(0)) & mask != 0


def _mantissa(x: Any) -> Any:
    return np.where(np.isfinite(x), np.frexp(np.where(np.isfinite(x), x, F32(0)))[0], x)


def _exponent_of(x: Any) -> Any:
    return np.where(np.isfinite(x), np.frexp(np.where(np.isfinite(x), x, F32(0)))[1], 0).astype(
        np.int32
    )


def _divide_fixup(quotient: Any, denominator: Any, numerator: Any) -> Any:
    """Compute the last step of a division, which handles special numbers."""
    q, d, n = np.broadcast_arrays(quotient, denominator, numerator)
    sign = np.where(np.signbit(d) ^ np.signbit(n), F32(-1), F32(1))
    undefined = ((d == 0) & (n == 0)) | (np.isinf(d) & np.isinf(n))
    too_small, too_large = exponent(n) - exponent(d) < -150, exponent(q) == 255
    conditions = [
        *(np.isnan(n), np.isnan(d), undefined),
        *((d == 0) | np.isinf(n), np.isinf(d) | (n == 0), too_small, too_large),
    ]
    infinity, zero = sign * F32(np.inf), sign * F32(0)
    results = [n, d, np.full_like(q, np.nan), infinity, zero, zero, infinity]
    return np.select(conditions, results, np.copysign(q, sign)).astype(F32)


def _ldexp(x: Any, power: Any) -> Any:
    return np.ldexp(x.astype(F64), np.clip(power, -400, 400)).astype(F32)


UNARY: dict[str, Callable[..., Any]] = {
    "v_exp_f32": _wide(np.exp2),
    "v_log_f32": _wide(np.log2),
    "v_rcp_f32": _wide(lambda x: 1.0 / x),
    "v_rcp_iflag_f32": _wide(lambda x: 1.0 / x),
    "v_rsq_f32": _wide(lambda x: 1.0 / np.sqrt(x)),
    "v_sqrt_f32": _wide(np.sqrt),
    "v_sin_f32": _wide(lambda x: np.sin(2 * np.pi * x)),
    "v_cos_f32": _wide(lambda x: np.cos(2 * np.pi * x)),
    "v_floor_f32": np.floor,
    "v_ceil_f32": np.ceil,
    "v_trunc_f32": np.trunc,
    "v_rndne_f32": np.rint,
    "v_fract_f32": lambda x: x - np.floor(x),
    "v_frexp_mant_f32": _mantissa,
    "v_frexp_exp_i32_f32": _exponent_of,
}
FLOAT: dict[str, Callable[..., Any]] = UNARY | {
    "v_add_f32": np.add,
    "v_sub_f32": np.subtract,
    "v_subrev_f32": lambda a, b: b - a,
    "v_mul_f32": np.multiply,
    "v_max_f32": _maximum,
    "v_min_f32": _minimum,
    "v_max3_f32": lambda a, b, c: _maximum(_maximum(a, b), c),
    "v_min3_f32": lambda a, b, c: _minimum(_minimum(a, b), c),
    "v_maximum3_f32": _propagating(_maximum),
    "v_minimum3_f32": _propagating(_minimum),
    "v_med3_f32": _median,
    "v_fma_f32": fma,
    "v_div_fixup_f32": _divide_fixup,
    "v_ldexp_f32": _ldexp,
}
COMPARE: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "ne": np.not_equal,
    "neq": np.not_equal,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "class": _class,
}
