"""Conversions of the vector unit, the steps of a division, and multiply-accumulate.

Source: CDNA3 and CDNA4 ISA, chapter "Vector ALU Instructions". `scalef32` uses a float32's
exponent.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.numbers import VALUES, look_up, to_bfloat16, to_float8
from eagle3_tools.amdgpu.emulator.operations.vector_float import exponent, fma
from eagle3_tools.amdgpu.emulator.waves import (
    Waves,
    constant,
    lane_mask,
    lane_mask_result,
    result,
    source,
    sources,
    words,
)
from eagle3_tools.aot.amd.decode import VCC, Instruction, Kind, Operand

F32, U32 = np.float32, np.uint32


def _to_integer(low: int, high: int, kind: Any) -> Callable[[Any], Any]:
    """Convert towards zero, saturating; NaN becomes 0."""

    def apply(x: Any) -> Any:
        whole = np.trunc(np.where(np.isnan(x), F32(0), x).astype(np.float64))
        return np.clip(whole, low, high).astype(np.int64).astype(kind)

    return apply


CONVERSION: dict[str, Callable[..., Any]] = {
    "v_cvt_f32_u32": lambda a: a.astype(F32),
    "v_cvt_f32_i32": lambda a: a.astype(F32),
    "v_cvt_u32_f32": _to_integer(0, 2**32 - 1, U32),
    "v_cvt_i32_f32": _to_integer(-(2**31), 2**31 - 1, np.int32),
    "v_cvt_pk_bf16_f32": lambda a, b: to_bfloat16(a) | to_bfloat16(b) << U32(16),
    # The product makes a signalling NaN quiet.
    "v_cvt_f32_f16": lambda a: a.astype(np.uint16).view(np.float16).astype(F32) * F32(1),
    "v_cvt_f32_bf16": lambda a: (a << U32(16)).view(F32),
} | {
    f"v_cvt_f32_ubyte{k}": lambda a, k=k: (a >> U32(8 * k) & U32(255)).astype(F32) for k in range(4)
}


def _power_of_two(scale: Any) -> Any:
    """Return 2**exponent of a float32, as e8m0: 2**-127 to 2**127, or NaN; in float64."""
    exponents = exponent(scale)
    return np.where(exponents == 255, np.nan, np.ldexp(1.0, exponents - 127))


def to_scaled_float8(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_cvt_scalef32_pk_fp8_f32: two numbers over the scale, into half a register."""
    first, second, scale = sources(instruction)
    target = instruction.operands["vdst"]
    shift = U32(16 * target.high)

    def run(w: Waves) -> None:
        factor = 1 / _power_of_two(scale(w))
        pair = ((x(w) * factor).astype(F32) for x in (first, second))
        low, high = (to_float8(x, w.arch, "fp8", w.saturates) for x in pair)
        kept = w.vectors[target.index, w.chosen] & ~(U32(0xFFFF) << shift)
        w.vector(target.index, kept | (low | high << U32(8)) << shift)

    return run


def from_scaled_float8(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_cvt_scalef32_pk_bf16_fp8: two numbers of half a register, times the scale."""
    packed, scale = words(instruction.sources[0]), source(instruction.sources[1])
    target, shift = result(instruction), U32(16 * instruction.sources[0].high)

    def run(w: Waves) -> None:
        values, bits = VALUES[w.arch, "fp8"], packed(w) >> shift
        factor = _power_of_two(scale(w))
        pair = (look_up(values, bits >> U32(8 * k) & U32(255)) for k in (0, 1))
        low, high = (to_bfloat16((x * factor).astype(F32)) for x in pair)
        target(w, low | high << U32(16))

    return run


def divide_scale(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_div_scale_f32, which scales an operand so that a division keeps all bits."""
    reads = sources(instruction)
    write, flags = result(instruction), lane_mask_result(instruction.operands["sdst"])

    def run(w: Waves) -> None:
        value, scaled = _scaled(*np.broadcast_arrays(*(read(w) for read in reads)))
        flags(w, scaled)
        write(w, value)

    return run


def _scaled(x: Any, denominator: Any, numerator: Any) -> tuple[Any, Any]:
    """Return the scaled source, and whether v_div_fmas must scale back (the ISA's conditions)."""
    d, n = denominator, numerator
    up, down = (np.ldexp(x.astype(np.float64), power).astype(F32) for power in (64, -64))
    tiny_reciprocal, tiny_ratio = _is_denormal(F32(1) / d), _is_denormal(n / d)
    same_as_d, same_as_n = (x == d), (x == n)
    conditions = [
        *((n == 0) | (d == 0), exponent(n) - exponent(d) >= 96, _is_denormal(d)),
        *(tiny_reciprocal & tiny_ratio, tiny_reciprocal, tiny_ratio, exponent(n) <= 23),
    ]
    values = [
        *(np.full_like(x, np.nan), np.where(same_as_d, up, x), up),
        # AMD's text scales by 2**64, but a denominator with such a reciprocal is too large for it.
        *(np.where(same_as_d, down, x), down, np.where(same_as_n, up, x), up),
    ]
    flagged = [False, True, False, True, False, True, False]
    return np.select(conditions, values, x).astype(F32), np.select(conditions, flagged, False)


def _is_denormal(x: Any) -> Any:
    return (exponent(x) == 0) & (x != 0)


def divide_fmas(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_div_fmas_f32: a * b + c, scaled back where VCC is set, rounded once.

    AMD's text scales by 2**32, which does not undo the 2**64 and 2**-64 of v_div_scale. Here a
    quotient is scaled in the direction of its own magnitude.
    """
    reads, write = sources(instruction), result(instruction)
    scaled = lane_mask(Operand(Kind.SCALAR, VCC, 64))

    def run(w: Waves) -> None:
        a, b, c = (read(w) for read in reads)
        power = np.where(scaled(w), np.where(exponent(c) > 127, 64, -64), 0)
        # In float64 the scaling of a factor and the addend is exact.
        a, c = (np.ldexp(x.astype(np.float64), power) for x in (a, c))
        write(w, fma(a, b, c))

    return run


def accumulate_pairs(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_dot2c_f32_bf16: two products, which are exact, added to the result in turn."""
    reads, write = sources(instruction), result(instruction)
    index = instruction.operands["vdst"].index

    def run(w: Waves) -> None:
        a, b = (read(w) for read in reads)
        total = w.vectors[index, w.chosen].view(F32)
        for first in (U32(0), U32(16)):
            x, y = ((bits >> first << U32(16)).view(F32) for bits in (a, b))
            total = total + x * y
        write(w, np.where(np.isnan(total), F32(np.nan), total))  # Which NaN is not documented.

    return run


def accumulate(instruction: Instruction) -> Callable[[Waves], None]:
    """Translate v_fmac, v_fmaak, v_fmamk: products added to the result register or a literal."""
    a, b = sources(instruction)
    write, index = result(instruction), instruction.operands["vdst"].index
    literal = constant(instruction.fields.get("literal", 0)).view(F32)
    if instruction.name == "v_fmac_f32":
        return lambda w: write(w, fma(a(w), b(w), w.vectors[index, w.chosen].view(F32)))
    if instruction.name == "v_fmaak_f32":
        return lambda w: write(w, fma(a(w), b(w), literal))
    return lambda w: write(w, fma(a(w), literal, b(w)))
