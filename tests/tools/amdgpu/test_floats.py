"""The pseudocode's floating-point arithmetic against NumPy and ml_dtypes."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from eagle3_tools.amdgpu.witness import floats, functions
from eagle3_tools.amdgpu.witness.bits import Bits, Type, integer
from eagle3_tools.amdgpu.witness.floats import F32, F64

_EDGES = (0, 1, 0x7FFFFF, 0x800000, 0x3F7FFFFF, 0x3F800000, 0x4B800001, 0x7F7FFFFF, 0x7F800000)
_NAN = 0x7FC00000


def _f32_patterns(count: int, seed: int) -> np.ndarray:
    """Draw u32 [count]: edge cases of both signs, a NaN, numbers near 1, arbitrary patterns."""
    rng = np.random.default_rng(seed)
    edges = np.array([*_EDGES, *(edge | 0x80000000 for edge in _EDGES), _NAN], np.uint32)
    near_one = rng.integers(0x3E000000, 0x41000000, count, dtype=np.uint32)
    anything = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    return rng.choice(np.concatenate([np.repeat(edges, count // 20), near_one, anything]), count)


def _same(got: Bits, expected: np.ndarray) -> bool:
    """Return whether the bits are equal, or both are NaN."""
    pattern = expected.view(f"u{expected.itemsize}")
    return got.pattern == pattern or (bool(np.isnan(expected)) and floats.is_nan(got))


@pytest.mark.parametrize(
    "function, ufunc",
    [(floats.add, np.add), (floats.multiply, np.multiply), (floats.divide, np.divide)],
)
def test_f32_arithmetic_is_numpys(function, ufunc):
    a, b = _f32_patterns(3000, 1), _f32_patterns(3000, 2)
    with np.errstate(all="ignore"):
        expected = ufunc(a.view(np.float32), b.view(np.float32))
    for x, y, z in zip(a.tolist(), b.tolist(), expected, strict=True):
        assert _same(function(Bits(F32, x), Bits(F32, y)), z), (hex(x), hex(y))


def test_f32_comparisons_are_numpys():
    a, b = _f32_patterns(1000, 3), _f32_patterns(1000, 4)
    ufuncs = {"==": np.equal, "!=": np.not_equal, "<": np.less, ">=": np.greater_equal}
    for operator, ufunc in ufuncs.items():
        expected = ufunc(a.view(np.float32), b.view(np.float32))
        for x, y, z in zip(a.tolist(), b.tolist(), expected.tolist(), strict=True):
            assert bool(floats.compare(operator, Bits(F32, x), Bits(F32, y))) == z


def test_fma_rounds_once():
    # (1 + 2**-23) ** 2 is 1 + 2**-22 + 2**-46: only an exact product keeps the 2**-46.
    above_one, minus = Bits(F32, 0x3F800001), Bits(F32, 0xBF800002)
    assert floats.exact(floats.fma(above_one, above_one, minus)) == Fraction(1, 2**46)
    # A sum in f64 is a tie here, and would drop the product below f64's last bit.
    tie, one, tiny = Bits(F32, 0x33800000), Bits(F32, 0x3F800000), Bits(F32, 0x00000001)
    assert floats.fma(tie, one, one).pattern == 0x3F800000
    near_tie = floats.add(tie, Bits(F32, 0x1B800000))
    assert floats.fma(near_tie, one, one).pattern == 0x3F800000
    product_above_tie = floats.fma(Bits(F32, 0x33800001), one, one)
    assert product_above_tie.pattern == 0x3F800001
    assert floats.fma(tiny, tiny, Bits(F32, 0x33800000)).pattern == 0x33800000


def test_a_zero_result_has_ieees_sign():
    one, minus_one = Bits(F32, 0x3F800000), Bits(F32, 0xBF800000)
    zero, minus_zero = Bits(F32, 0), Bits(F32, 0x80000000)
    assert floats.add(one, minus_one) == zero
    assert floats.add(minus_zero, minus_zero) == minus_zero
    assert floats.add(zero, minus_zero) == zero
    assert floats.multiply(minus_zero, one) == minus_zero
    assert floats.fma(Bits(F32, 0x80000001), Bits(F32, 1), zero) == minus_zero


@pytest.mark.parametrize(
    "type_, dtype",
    [
        (Type("f", 16), np.float16),
        (Type("bf", 16), ml_dtypes.bfloat16),
        (Type("bf", 8), ml_dtypes.float8_e5m2),
        (Type("fp", 8), ml_dtypes.float8_e4m3fn),
    ],
)
def test_conversions_from_f32_and_back_are_numpys(type_: Type, dtype):
    patterns = _f32_patterns(3000, 5)
    with np.errstate(all="ignore"):
        expected = patterns.view(np.float32).astype(dtype)
    for pattern, narrow in zip(patterns.tolist(), expected, strict=True):
        got = floats.converted(Bits(F32, pattern), type_)
        assert _same(got, narrow), hex(pattern)
        if not floats.is_nan(got):
            assert _same(floats.converted(got, F32), narrow.astype(np.float32))


def test_a_nan_keeps_its_payload_and_its_quiet_bit_through_f64():
    for pattern in (0x7F800001, 0xFFC00123, 0x7FBFFFFF):
        wide = floats.converted(Bits(F32, pattern), F64)
        assert floats.is_quiet(wide) == bool(pattern & 0x400000)
        assert floats.converted(wide, F32).pattern == pattern


def test_integers_become_the_nearest_f32():
    numbers = [0, 1, -1, 2**24 + 1, 2**24 + 3, -(2**31), 2**31 - 1]
    for number in numbers:
        got = functions.convert(integer("i", 32, number), F32)
        assert got.pattern == int(np.float32(number).view(np.uint32))


def test_ldexp_rounds_a_denormal_result_once_and_saturates():
    assert floats.ldexp(Bits(F32, 0x3FC00000), -149).pattern == 2  # 1.5 is a tie, to even
    assert floats.ldexp(Bits(F32, 0x3F800000), 1 << 30).pattern == 0x7F800000
    assert floats.ldexp(Bits(F32, 0xBF800000), -(1 << 30)).pattern == 0x80000000
    assert floats.ldexp(Bits(F32, 0x00000001), 149 + 127).pattern == 0x7F000000


@pytest.mark.parametrize("number", [1.0, -6.0, 2.0**-149, 1.1754944e-38, 3.0e38, -0.0])
def test_mantissa_and_exponent_are_frexps(number: float):
    value = Bits(F32, int(np.float32(number).view(np.uint32)))
    fraction, exponent = np.frexp(np.float32(number))
    mantissa_of, exponent_of = map(functions.function_named, ("mantissa", "frexp_exponent"))
    assert mantissa_of is not None and exponent_of is not None
    assert mantissa_of(value).pattern == int(fraction.view(np.uint32))
    assert exponent_of(value).number == exponent
