"""Effects of encodings on operands and results: signs, clamps, halves, parts, constants."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad")

from amdgpu.comparison import check
from amdgpu.instructions import encode, s
from amdgpu.single import held, random_waves
from eagle3_tools.amdgpu.emulator.waves import Waves
from eagle3_tools.amdgpu.witness.pseudocode import evaluate
from eagle3_tools.aot.amd.decode import Instruction

U64 = np.uint64
_LOW, _SIGN = U64(0xFFFF_FFFF), U64(0x8000_0000)
_PARTS = ((0, 8), (8, 8), (16, 8), (24, 8), (0, 16), (16, 16), (0, 32))
"""First bit and width of SDWA's selections, in order of their codes (CDNA3 ISA, "SDWA")."""
_PACKED = [("v_pk_fma_f32", 3), ("v_pk_add_f32", 2), ("v_pk_mul_f32", 2)]


def _signed(values: np.ndarray, absolute: int, negate: int) -> np.ndarray:
    """Take the absolute value, then negate."""
    values = values & ~_SIGN if absolute else values
    return values ^ _SIGN if negate else values


@pytest.mark.parametrize(
    "mnemonic",
    "v_fma_f32 v_add_f32 v_mul_f32 v_max_f32 v_min_f32 v_med3_f32 v_max3_f32 v_cndmask_b32 "
    "v_cmp_lt_f32 v_cmp_class_f32 v_cvt_i32_f32 v_rndne_f32 v_ldexp_f32 v_cvt_pk_bf16_f32".split(),
)
def test_sources_lose_and_change_their_signs(mnemonic: str):
    for negate, absolute in ((1, 0), (0, 1), (3, 3), (2, 1), (5, 2)):
        plain = encode(mnemonic, "e64")
        floats = [o.type in ("F32", "B32") for o in plain.sources if o.type != "M64"]
        changes = sum(f << k for k, f in enumerate(floats))
        if mnemonic in ("v_ldexp_f32", "v_cmp_class_f32"):
            changes = 1
        i = encode(mnemonic, "e64", neg=negate & changes, abs=absolute & changes)
        w = random_waves(i, 2, negate)
        seen = [
            _signed(held(w, o), absolute & changes & 1 << k, negate & changes & 1 << k)
            for k, o in enumerate(i.sources)
            if o.type != "M64"
        ]
        check(i, w, negate, sources=seen)


def _clamped(patterns: np.ndarray) -> np.ndarray:
    """Clamp to [0, 1] by AMD's maximum and minimum; NaN gives 0, -0 stays as in LLVM's folding."""
    flat = [
        pattern if pattern == 0x80000000 else _between_0_and_1(_quiet(pattern))
        for pattern in map(int, patterns.reshape(-1))
    ]
    return np.array(flat, U64).reshape(patterns.shape)


def _between_0_and_1(pattern: int) -> int:
    positive = evaluate("v_max_f32", {"S0": pattern, "S1": 0})["D0"]
    return evaluate("v_min_f32", {"S0": positive, "S1": 0x3F800000})["D0"]


def _quiet(pattern: int) -> int:
    return 0x7FC00000 if pattern & 0x7FFFFFFF > 0x7F800000 else pattern


@pytest.mark.parametrize("mnemonic", ["v_add_f32", "v_fma_f32", "v_mul_f32", "v_max_f32"])
def test_results_are_clamped(mnemonic: str):
    i = encode(mnemonic, "e64", clmp=1)
    check(i, random_waves(i, 2, 0), 0, after=_clamped)


def _halves(i: Instruction, w: Waves, low: int, high: int, bits: int) -> list[np.ndarray]:
    """Return each source with the halves of `bits` that op_sel and op_sel_hi choose."""

    def half(values: np.ndarray, which: int) -> np.ndarray:
        return values >> U64(bits * (which & 1)) & U64((1 << bits) - 1)

    return [
        half(held(w, o), low >> k) | half(held(w, o), high >> k) << U64(bits)
        for k, o in enumerate(i.sources)
    ]


@pytest.mark.parametrize("mnemonic, count", _PACKED)
def test_packed_operations_take_the_halves_that_op_sel_names(mnemonic: str, count: int):
    for low in range(1 << count):
        for high in range(1 << count):
            fields: dict[str, Any] = {"opsel": low, "opsel_hi": high & 3, "opsel_hi2": high >> 2}
            i = encode(mnemonic, **fields)
            w = random_waves(i, 1, low)
            check(i, w, low, sources=_halves(i, w, low, high, 32))


@pytest.mark.parametrize("mnemonic, count", _PACKED)
def test_packed_operations_change_the_signs_of_halves(mnemonic: str, count: int):
    for low, high in ((1, 0), (0, 1), (2, 3), (3, 2), (4, 1), (5, 6)):
        low, high = low & (1 << count) - 1, high & (1 << count) - 1
        i = encode(mnemonic, neg=low, neg_hi=high, opsel_hi=3, opsel_hi2=1)
        w = random_waves(i, 1, low)
        signs = [U64((low >> k & 1) << 31 | (high >> k & 1) << 63) for k in range(count)]
        changed = [held(w, o) ^ sign for o, sign in zip(i.sources, signs, strict=True)]
        check(i, w, low, sources=changed)


@pytest.mark.parametrize("low", range(4))
@pytest.mark.parametrize("high", range(4))
def test_packed_operations_on_16_bits_take_the_halves_that_op_sel_names(low: int, high: int):
    i = encode("v_pk_mul_lo_u16", opsel=low, opsel_hi=high)
    w = random_waves(i, 1, 4 * high + low)
    check(i, w, low, sources=_halves(i, w, low, high, 16))


@pytest.mark.parametrize("chosen", range(4))
def test_a_packed_move_takes_the_halves_that_op_sel_names(chosen: int):
    i = encode("v_pk_mov_b32", opsel=chosen, opsel_hi=3)
    check(i, random_waves(i, 2, 0), 0)


@pytest.mark.parametrize("mnemonic", ["v_add_u16", "v_lshlrev_b16", "v_cmp_lt_i16", "v_bitop3_b16"])
def test_operations_on_16_bits_take_the_halves_that_op_sel_names(mnemonic: str):
    for chosen in (1, 2, 3, 8, 11):
        if mnemonic.startswith("v_cmp"):
            chosen &= 3
        i = encode(mnemonic, "e64", opsel=chosen)
        w = random_waves(i, 2, chosen)
        seen = [held(w, o) >> U64(16 * (chosen >> k & 1)) for k, o in enumerate(i.sources)]

        def into_the_upper_half(said: np.ndarray, i: Instruction = i, w: Waves = w) -> np.ndarray:
            return held(w, i.operands["vdst"]) & U64(0xFFFF) | said << U64(16) & _LOW

        check(i, w, chosen, sources=seen, after=into_the_upper_half if chosen & 8 else lambda x: x)


def _part(values: np.ndarray, selection: int, extends: int) -> np.ndarray:
    first, bits = _PARTS[selection]
    part = values >> U64(first) & U64((1 << bits) - 1)
    sign = part >> U64(bits - 1) & U64(1)
    return np.where(sign & U64(extends) == 1, part | U64(0xFFFF_FFFF << bits & 0xFFFF_FFFF), part)


@pytest.mark.parametrize(
    "mnemonic",
    [
        *"v_or_b32 v_add_u32 v_lshlrev_b32 v_mov_b32 v_add_u16 v_lshlrev_b16 v_cmp_eq_u32".split(),
        *"v_mul_u32_u24 v_cvt_f32_u32 v_sub_u16 v_add_co_u32 v_cmp_lt_i16 v_mul_lo_u16".split(),
        *"v_cndmask_b32 v_xor_b32 v_and_b32 v_lshrrev_b32 v_ashrrev_i16".split(),
        "v_cmp_ne_u16",
    ],
)
def test_sdwa_takes_parts_of_sources(mnemonic: str):
    for a, b, extends_a, extends_b in (
        *((0, 1, 0, 0), (2, 3, 1, 0), (4, 5, 0, 1)),
        *((5, 4, 1, 1), (6, 0, 0, 1), (3, 6, 1, 0)),
    ):
        fields = {"src0_sel": a, "src0_sext": extends_a, "src1_sel": b, "src1_sext": extends_b}
        form, written = ("SDWA_SDST", {}) if "cmp" in mnemonic else ("SDWA", {"dst_sel": 6})
        i = encode(mnemonic, form, **fields, **written)
        w = random_waves(i, 2, a)
        chosen = ((a, extends_a), (b, extends_b))
        sources = [_part(held(w, o), *c) for o, c in zip(i.sources, chosen, strict=False)]
        check(i, w, a, sources=sources)


def test_a_byte_with_a_sign_has_16_bits_in_an_unsigned_operation_on_16():
    i = encode("v_cmp_eq_u16", "SDWA_SDST", src0_sel=0, src0_sext=1, src1_sel=4)
    w = random_waves(i, 1, 0)
    w.vectors[16], w.vectors[24] = 0x80, 0xFF80
    check(i, w, 0, sources=[_part(held(w, i.sources[0]), 0, 1), held(w, i.sources[1])])


@pytest.mark.parametrize("selection", range(7))
@pytest.mark.parametrize("unused", [0, 2])
@pytest.mark.parametrize("mnemonic", ["v_or_b32", "v_add_u32", "v_lshlrev_b16"])
def test_sdwa_writes_a_part_of_the_result(mnemonic: str, selection: int, unused: int):
    """The rest of the register becomes zero or is unchanged."""
    i = encode(mnemonic, "SDWA", src0_sel=6, src1_sel=6, dst_sel=selection, dst_unused=unused)
    w = random_waves(i, 2, selection)
    first, bits = _PARTS[selection]
    mask = U64((1 << bits) - 1 << first)
    kept = held(w, i.operands["vdst"]) & ~mask if unused else U64(0)
    check(i, w, selection, after=lambda said: said << U64(first) & mask | kept)


@pytest.mark.parametrize("value", [0, 64, -16, 0.5, -4.0, 1.0, s(248), 0x12345678, s(20), s(253)])
@pytest.mark.parametrize("mnemonic", ["v_add_f32", "v_add_u32", "v_ashrrev_i32"])
def test_a_source_can_be_a_constant_or_a_scalar(mnemonic: str, value: object):
    i = encode(mnemonic, "e32", src0=value)
    w = random_waves(i, 2, 0)
    check(i, w, 0)
    if isinstance(value, int | float):
        raw = np.float32(value).view(np.uint32) if isinstance(value, float) else value
        assert int(held(w, i.sources[0])[0, 0]) == int(raw) & 0xFFFF_FFFF


def test_a_small_negative_constant_fills_64_bits():
    i = encode("s_mov_b64", ssrc0=-16)
    assert int(held(random_waves(i, 1, 0), i.sources[0])[0, 0]) == (1 << 64) - 16
