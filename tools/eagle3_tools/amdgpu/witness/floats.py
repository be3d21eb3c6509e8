"""Floating-point formats and arithmetic: exact rationals, rounded once to nearest even.

Formats: IEEE 754-2019 for f16, f32 and f64; bfloat16; OCP OFP8 for fp8 (E4M3), which gfx950
uses (gfx942's fp8 is another format, which the compiled kernels do not convert). NaN results
are the format's positive quiet NaN, because the pseudocode specifies no payload.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from eagle3_tools.amdgpu.witness.bits import Bits, Type


@dataclass(frozen=True)
class Format:
    """A format. `infinity` is the pattern of +inf, or else of the NaN that overflow gives."""

    exponent_bits: int
    fraction_bits: int
    has_infinity: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign_bit(self) -> int:
        return 1 << (self.exponent_bits + self.fraction_bits)

    @property
    def infinity(self) -> int:
        all_ones = self.sign_bit - 1
        return all_ones - ((1 << self.fraction_bits) - 1) if self.has_infinity else all_ones

    @property
    def quiet_nan(self) -> int:
        return self.infinity | (1 << (self.fraction_bits - 1))


FORMATS = {
    Type("f", 16): Format(5, 10),
    Type("f", 32): Format(8, 23),
    Type("f", 64): Format(11, 52),
    Type("bf", 16): Format(8, 7),
    Type("fp", 8): Format(4, 3, has_infinity=False),
}
F32, F64 = Type("f", 32), Type("f", 64)


def sign(value: Bits) -> bool:
    return bool(value.pattern & FORMATS[value.type].sign_bit)


def magnitude(value: Bits) -> int:
    """Return the pattern without its sign."""
    return value.pattern & ~FORMATS[value.type].sign_bit


def is_nan(value: Bits) -> bool:
    form = FORMATS[value.type]
    return magnitude(value) > form.infinity - (0 if form.has_infinity else 1)


def is_quiet(value: Bits) -> bool:
    """Return whether a NaN has its quiet bit, the top one of the fraction."""
    return bool(value.pattern >> (FORMATS[value.type].fraction_bits - 1) & 1)


def is_infinite(value: Bits) -> bool:
    form = FORMATS[value.type]
    return form.has_infinity and magnitude(value) == form.infinity


def is_finite(value: Bits) -> bool:
    return not is_nan(value) and not is_infinite(value)


def is_denormal(value: Bits) -> bool:
    return 0 < magnitude(value) < 1 << FORMATS[value.type].fraction_bits


def biased_exponent(value: Bits) -> int:
    return magnitude(value) >> FORMATS[value.type].fraction_bits


def exact(value: Bits) -> Fraction:
    """Return a finite value as a rational number."""
    form = FORMATS[value.type]
    fraction = magnitude(value) & ((1 << form.fraction_bits) - 1)
    exponent = biased_exponent(value)
    significand = fraction | (1 << form.fraction_bits) if exponent else fraction
    power = max(exponent, 1) - form.bias - form.fraction_bits
    size = Fraction(significand) * Fraction(2) ** power
    return -size if sign(value) else size


def infinity(type_: Type, negative: bool) -> Bits:
    form = FORMATS[type_]
    return Bits(type_, form.infinity | (form.sign_bit if negative else 0))


def zero(type_: Type, negative: bool) -> Bits:
    return Bits(type_, FORMATS[type_].sign_bit if negative else 0)


def nan(type_: Type) -> Bits:
    return Bits(type_, FORMATS[type_].quiet_nan)


def rounded(type_: Type, number: Fraction) -> Bits:
    """Round to the nearest value, ties to even; overflow depends on the format."""
    if number == 0:
        return zero(type_, negative=False)
    form, size = FORMATS[type_], abs(number)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    exponent = max(exponent, 1 - form.bias)
    significand = round(size / Fraction(2) ** (exponent - form.fraction_bits))
    # Adding handles a denormal without implicit bit, and a carry from rounding up.
    pattern = ((exponent + form.bias - 1) << form.fraction_bits) + significand
    pattern = min(pattern, form.infinity)
    return Bits(type_, pattern | (form.sign_bit if number < 0 else 0))


def to_float(value: Bits) -> float:
    if is_nan(value):
        return math.nan
    size = math.inf if is_infinite(value) else float(abs(exact(value)))
    return -size if sign(value) else size


def from_float(number: float, type_: Type) -> Bits:
    """Round Python's float to a type."""
    negative = math.copysign(1.0, number) < 0
    if math.isnan(number):
        return nan(type_)
    if math.isinf(number):
        return infinity(type_, negative)
    return rounded(type_, Fraction(number)) if number else zero(type_, negative)


def scaled_fma(a: Bits, b: Bits, c: Bits, power: int) -> Bits:
    """Compute (a * b + c) * 2 ** power, rounded once."""
    if not (is_finite(a) and is_finite(b) and is_finite(c)):
        return from_float(to_float(a) * to_float(b) + to_float(c), a.type)
    total = exact(a) * exact(b) + exact(c)
    if total:
        result = rounded(a.type, total * Fraction(2) ** power)
        return Bits(a.type, magnitude(result) | zero(a.type, total < 0).pattern)
    negative_product = sign(a) != sign(b)
    only_zeros = exact(c) == 0
    return zero(a.type, negative_product and sign(c) and only_zeros)


def fma(a: Bits, b: Bits, c: Bits) -> Bits:
    return scaled_fma(a, b, c, 0)


def multiply(a: Bits, b: Bits) -> Bits:
    # x + -0 is x, also for a zero of either sign.
    return fma(a, b, zero(a.type, negative=True))


def add(a: Bits, b: Bits) -> Bits:
    return fma(a, rounded(a.type, Fraction(1)), b)


def negate(a: Bits) -> Bits:
    return Bits(a.type, a.pattern ^ FORMATS[a.type].sign_bit)


def divide(a: Bits, b: Bits) -> Bits:
    negative = sign(a) != sign(b)
    if is_finite(a) and is_finite(b) and magnitude(b):
        size = rounded(a.type, abs(exact(a) / exact(b)))
        return Bits(a.type, size.pattern | zero(a.type, negative).pattern)
    if is_nan(a) or is_nan(b) or abs(to_float(a)) == abs(to_float(b)):  # inf/inf, 0/0
        return nan(a.type)
    return zero(a.type, negative) if is_infinite(b) else infinity(a.type, negative)


def ldexp(a: Bits, power: int) -> Bits:
    """Compute a * 2 ** power, rounded once; powers beyond the format's range are clipped."""
    one = rounded(a.type, Fraction(1))
    return scaled_fma(a, one, zero(a.type, sign(a)), max(-4500, min(4500, power)))


def ordered(value: Bits) -> int:
    """Return an integer with the order of the values of one format; both zeros give 0."""
    return -magnitude(value) if sign(value) else magnitude(value)


def converted(value: Bits, type_: Type) -> Bits:
    """Convert to another format with rounding; a NaN keeps its sign, quiet bit and payload."""
    if value.type == type_:
        return value
    negative = sign(value)
    if is_nan(value):
        if not (FORMATS[type_].has_infinity and FORMATS[value.type].has_infinity):
            return Bits(type_, nan(type_).pattern | zero(type_, negative).pattern)
        return _nan_converted(value, type_)
    if is_infinite(value):
        return infinity(type_, negative)
    result = rounded(type_, exact(value))
    return Bits(type_, magnitude(result) | zero(type_, negative).pattern)


def _nan_converted(value: Bits, type_: Type) -> Bits:
    source, target = FORMATS[value.type], FORMATS[type_]
    fraction = magnitude(value) - source.infinity
    shift = target.fraction_bits - source.fraction_bits
    # A payload that does not fit must not turn the NaN into infinity.
    fraction = fraction << shift if shift >= 0 else (fraction >> -shift) or 1
    return Bits(type_, target.infinity | fraction | zero(type_, sign(value)).pattern)
