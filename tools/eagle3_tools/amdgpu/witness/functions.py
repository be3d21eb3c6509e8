"""Functions that AMD's pseudocode calls and does not define.

v_exp, v_log, v_rcp, v_rsq and v_sqrt are approximations in hardware. Here divide and sqrt round
correctly, and pow and log2 round Python's f64 result: compare within a few ulp.
"""

import math
import re
from collections.abc import Callable
from fractions import Fraction

from eagle3_tools.amdgpu.witness import floats
from eagle3_tools.amdgpu.witness.bits import Bits, Type, flag, integer, type_named
from eagle3_tools.amdgpu.witness.floats import (
    FORMATS,
    exact,
    is_finite,
    is_nan,
    rounded,
)

_CONVERSION = re.compile(r"(?:([a-z]+\d+)_)?to_([a-z]+\d+)(_scale)?")
_SCALE_BIAS = 127  # The bias of f32's exponent, and of E8M0.


def function_named(name: str) -> Callable[..., Bits] | None:
    """Return the function of this name, such as fma, to_u32 or f32_to_bf16_scale, or None."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    match = _CONVERSION.fullmatch(name)
    if match is None:
        return None
    target = type_named(match[2])
    if not match[3]:
        return lambda value: convert(value, target)
    wide = match[1] in ("f32", "f16", "bf16")
    return lambda value, scale: _scaled(value, target, scale, -1 if wide else 1)


def convert(value: Bits, type_: Type) -> Bits:
    """Convert to another type: to floats to nearest even, to integers towards zero.

    Integers wrap. A float out of range gives the nearest integer, and NaN gives 0. A bare pattern
    (kind b) becomes a float by its bits, as in 32'F(0xffc00000).
    """
    if type_.is_float:
        if value.type.is_float:
            return floats.converted(value, type_)
        if value.type.kind == "b":
            return Bits(type_, value.pattern & ((1 << type_.width) - 1))
        return rounded(type_, Fraction(value.number))
    if value.type.is_float:
        return _to_integer(value, type_)
    return integer(type_.kind, type_.width, value.number)


def _to_integer(value: Bits, type_: Type) -> Bits:
    low = -(1 << (type_.width - 1)) if type_.kind == "i" else 0
    high = low + (1 << type_.width) - 1
    if is_nan(value):
        return integer(type_.kind, type_.width, 0)
    if not is_finite(value):
        return integer(type_.kind, type_.width, low if floats.sign(value) else high)
    number = max(low, min(high, math.trunc(exact(value))))
    return integer(type_.kind, type_.width, number)


def _scaled(value: Bits, type_: Type, scale: Bits, direction: int) -> Bits:
    """Convert with one rounding: divide by 2 ** (scale - 127) for a narrow target, else multiply.

    A scale of 255 is NaN, as in E8M0 of the OCP Microscaling formats.
    """
    if scale.pattern == 255:
        return floats.nan(type_)
    if not is_finite(value) or floats.magnitude(value) == 0:
        return floats.converted(value, type_)
    number = exact(value) * Fraction(2) ** (direction * (scale.number - _SCALE_BIAS))
    result = rounded(type_, abs(number))
    return Bits(type_, result.pattern | floats.zero(type_, floats.sign(value)).pattern)


def _abs(value: Bits) -> Bits:
    return Bits(value.type, floats.magnitude(value))


def _integral(value: Bits, round_: Callable[[Fraction], int]) -> Bits:
    """Round to an integer; a zero keeps the operand's sign."""
    if not is_finite(value):
        return value
    whole = rounded(value.type, Fraction(round_(exact(value))))
    return whole if whole.pattern else floats.zero(value.type, floats.sign(value))


def _fract(value: Bits) -> Bits:
    if not is_finite(value):
        return floats.nan(value.type)
    number = exact(value)
    return rounded(value.type, number - math.floor(number))


def _mantissa(value: Bits) -> Bits:
    """Return the significand in [0.5, 1) with the operand's sign, or a zero unchanged."""
    power = _frexp_exponent(value).number
    return value if floats.magnitude(value) == 0 else floats.ldexp(value, -power)


def _frexp_exponent(value: Bits) -> Bits:
    if not is_finite(value) or floats.magnitude(value) == 0:
        return integer("i", 32, 0)
    size = abs(exact(value))
    power = size.numerator.bit_length() - size.denominator.bit_length()
    return integer("i", 32, power + int(size >= Fraction(2) ** power))


def _by_float(function: Callable[..., float]) -> Callable[..., Bits]:
    """Wrap a function of real numbers in Python's f64; NaN where it is undefined."""

    def call(*operands: Bits) -> Bits:
        type_ = operands[0].type
        numbers = [floats.to_float(each) for each in operands]
        try:
            result = function(*numbers)
        except ValueError:
            return floats.nan(type_)
        except OverflowError:
            return floats.infinity(type_, negative=False)
        return floats.from_float(result, type_)

    return call


def _log2(number: float) -> float:
    return math.log2(number) if number else -math.inf


def _signext_from_bit(value: Bits, width: Bits) -> Bits:
    """Sign-extend the low `width` bits; all of `value` if it has no more."""
    if width.number == 0 or width.number >= value.type.width:
        return value
    low = value.pattern & ((1 << width.number) - 1)
    sign_weight = 1 << (width.number - 1)
    return integer(value.type.kind, value.type.width, (low ^ sign_weight) - sign_weight)


def _signext(value: Bits) -> Bits:
    return integer("i", 64, Bits(Type("i", value.type.width), value.pattern).number)


def _quieted(value: Bits) -> Bits:
    return Bits(value.type, value.pattern | (1 << (FORMATS[value.type].fraction_bits - 1)))


def _is_even(value: Bits) -> Bits:
    return flag(is_finite(value) and exact(value) % 2 == 0)


_FUNCTIONS: dict[str, Callable[..., Bits]] = {
    "abs": _abs,
    "sign": lambda value: flag(floats.sign(value)),
    "exponent": lambda value: integer("i", 32, floats.biased_exponent(value)),
    "frexp_exponent": _frexp_exponent,
    "mantissa": _mantissa,
    "isNAN": lambda value: flag(is_nan(value)),
    "isQuietNAN": lambda value: flag(is_nan(value) and floats.is_quiet(value)),
    "isSignalNAN": lambda value: flag(is_nan(value) and not floats.is_quiet(value)),
    "isDENORM": lambda value: flag(floats.is_denormal(value)),
    "isEven": _is_even,
    "identical": lambda a, b: flag(a.pattern == b.pattern),
    "cvtToQuietNAN": _quieted,
    "fma": floats.fma,
    "scaled_fma": lambda a, b, c, power: floats.scaled_fma(a, b, c, power.number),
    "ldexp": lambda value, power: floats.ldexp(value, power.number),
    "floor": lambda value: _integral(value, math.floor),
    "trunc": lambda value: _integral(value, math.trunc),
    "fract": _fract,
    "sqrt": _by_float(math.sqrt),
    "pow": _by_float(math.pow),
    "log2": _by_float(_log2),
    "signext": _signext,
    "signext_from_bit": _signext_from_bit,
}
