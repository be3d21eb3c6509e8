"""AMD's texts of our programs' opcodes are readable and are evaluated correctly."""

import re

import numpy as np
import pytest

from eagle3_tools.amdgpu.witness.opcodes import COMPILED
from eagle3_tools.amdgpu.witness.pseudocode import (
    PseudocodeError,
    evaluate,
    run_text,
    text_of,
    why_unreadable,
)
from eagle3_tools.amdgpu.witness.readings import CORRECTIONS, Correction, corrections_of

pytest.importorskip("tinygrad")

_LANES = range(64)
_REGISTERS = {(lane, register): 100 * register + lane for lane in _LANES for register in range(4)}
_STATE = {
    **{"S0": 0x3F800000, "S1": 0x40000005, "S2": 0x40400000, "D0": 0x3F000000, "SCC": 1},
    **{"VCC": 5, "EXEC": (1 << 64) - 1, "EXECZ": 0, "VCCZ": 0, "PC": 100, "laneId": 2},
    **{"SIMM16": 4, "SIMM32": 0x40000000, "HW_REGISTERS": {4: 0}},
    **{"VGPR": _REGISTERS, "SRC0": 0, "VDST": 1, "DATA0": 2},
    **{"MEM": {address: address & 255 for address in range(1024)}, "address": 16, "ADDR": 1},
    **{"OFFSET": 0, "OFFSET0": 0, "OFFSET1": 1, "DATA": 0x1234, "DATA2": 0x5678},
}
# Opcodes without text: the emulator's semantics have other sources.
_WITHOUT_TEXT = {
    *("ds_read_b64_tr_b16", "ds_swizzle_b32", "s_barrier", "s_endpgm", "s_setprio", "s_waitcnt"),
    *("v_accvgpr_mov_b32", "v_accvgpr_read_b32", "v_accvgpr_write_b32"),
}


def _of(mnemonic: str, *sources: int, **state: int) -> dict[str, int]:
    return evaluate(mnemonic, {f"S{i}": int(x) for i, x in enumerate(sources)} | state)


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


@pytest.mark.parametrize("mnemonic", COMPILED)
def test_a_compiled_opcode_evaluates_or_says_why_not(mnemonic: str):
    reason = why_unreadable(mnemonic)
    assert (text_of(mnemonic) is None) == (reason is not None)
    if reason is None:
        written = evaluate(mnemonic, _STATE)
        assert written or mnemonic == "s_nop"
    else:
        assert mnemonic in _WITHOUT_TEXT or mnemonic.startswith("v_mfma_")


def test_an_unreadable_opcode_is_refused():
    with pytest.raises(ValueError, match="readable text, got s_barrier"):
        evaluate("s_barrier", {})


def test_an_unknown_function_is_refused():
    with pytest.raises(PseudocodeError, match="function of the pseudocode, got unknown"):
        run_text("D0.u32 = unknown(S0.u32)", {"S0": 1})


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda each: each.opcodes + each.wrong)
def test_every_correction_finds_what_it_corrects(correction: Correction):
    corrected = filter(re.compile(correction.opcodes).fullmatch, COMPILED)
    texts = [_text_before(correction, mnemonic) for mnemonic in corrected]
    assert any(re.search(correction.wrong, text) for text in texts)


def _text_before(correction: Correction, mnemonic: str) -> str:
    """Return the opcode's text with all corrections before this one."""
    text = text_of(mnemonic) or ""
    for each in corrections_of(mnemonic):
        if each == correction:
            break
        text = re.sub(each.wrong, each.right, text)
    return text


@pytest.mark.parametrize(
    "mnemonic, state, expected",
    [
        ("s_add_u32", {"S0": 0xFFFFFFFF, "S1": 2}, {"D0": 1, "SCC": 1}),
        ("s_addc_u32", {"S0": 0xFFFFFFFF, "S1": 0, "SCC": 1}, {"D0": 0, "SCC": 1}),
        ("s_add_i32", {"S0": 0x7FFFFFFF, "S1": 1}, {"D0": 0x80000000, "SCC": 1}),
        ("s_subb_u32", {"S0": 0, "S1": 0, "SCC": 1}, {"D0": 0xFFFFFFFF, "SCC": 1}),
        ("s_movk_i32", {"S0": 0x8000}, {"D0": 0xFFFF8000}),
        ("s_addk_i32", {"S0": 0xFFFF, "D0": 5}, {"D0": 4, "SCC": 0}),
        ("s_cmpk_eq_i32", {"S0": 0xFFFFFFFF, "S1": 0xFFFF}, {"SCC": 1}),
        ("s_bfe_u32", {"S0": 0x12345678, "S1": 8 | 12 << 16}, {"D0": 0x456, "SCC": 1}),
        ("s_bfe_i32", {"S0": 0x12345678, "S1": 4 | 4 << 16}, {"D0": 7, "SCC": 1}),
        ("s_bfe_i32", {"S0": 0x12348678, "S1": 12 | 4 << 16}, {"D0": 0xFFFFFFF8, "SCC": 1}),
        ("s_brev_b32", {"S0": 1}, {"D0": 0x80000000}),
        ("s_bitset1_b32", {"S0": 4, "D0": 1}, {"D0": 17}),
        ("s_lshl4_add_u32", {"S0": 0x10000000, "S1": 3}, {"D0": 3, "SCC": 1}),
        (
            "s_andn2_saveexec_b64",
            {"S0": 0b1110, "EXEC": 0b0111},
            {"D0": 0b0111, "EXEC": 0b1000, "SCC": 1},
        ),
        ("s_setreg_imm32_b32", {}, {"HW_REGISTERS": {1: 0x2F0}}),
        ("s_cbranch_scc1", {"SCC": 1, "SIMM16": 0xFFFE, "PC": 100}, {"PC": 96}),
        ("s_branch", {"SIMM16": 0x4000, "PC": 0}, {"PC": 0x10004}),
        ("v_add_co_u32", {"S0": 0xFFFFFFFF, "S1": 1, "VCC": 0}, {"D0": 0, "VCC": 4}),
        ("v_subbrev_co_u32", {"S0": 5, "S1": 5, "VCC": 4}, {"D0": 0xFFFFFFFF, "VCC": 4}),
        ("v_cmp_gt_i32", {"S0": 1, "S1": 0xFFFFFFFF, "D0": 0}, {"D0": 4}),
        ("v_cndmask_b32", {"S0": 1, "S1": 2, "VCC": 4}, {"D0": 2}),
        ("v_mad_u64_u32", {"S0": 1 << 31, "S1": 4, "S2": 7}, {"D0": (1 << 33) + 7, "D1": 0}),
        ("v_mul_hi_u32_u24", {"S0": 0xFF800000, "S1": 0x800000}, {"D0": 1 << 14}),
        ("v_bfe_i32", {"S0": 0xF0, "S1": 4, "S2": 4}, {"D0": 0xFFFFFFFF}),
        ("v_ashrrev_i16", {"S0": 4, "S1": 0x8000, "D0": 0xAAAA0000}, {"D0": 0xAAAAF800}),
        ("v_perm_b32", {"S0": 0x11223344, "S1": 0x8899AABB, "S2": 0x0C0D0804}, {"D0": 0xFFFF44}),
        ("v_bitop3_b32", {"S0": 0xF0, "S1": 0xCC, "S2": 0xAA, "INST.NEG": 6}, {"D0": 6}),
        ("v_mbcnt_lo_u32_b32", {"S0": 0xFF, "S1": 10}, {"D0": 12}),
        ("v_mbcnt_hi_u32_b32", {"S0": 0xFF, "S1": 10, "laneId": 35}, {"D0": 13}),
        ("v_pk_mov_b32", {"S0": 1 << 32, "S1": 2 << 32, "OPSEL": 3}, {"D0": 2 << 32 | 1}),
        ("v_frexp_exp_i32_f32", {"S0": 1}, {"D0": (1 << 32) - 148}),
        ("v_frexp_exp_i32_f32", {"S0": 0}, {"D0": 0}),
        ("v_ldexp_f32", {"S0": 1, "S1": 200}, {"D0": 0x59000000}),
        ("v_readlane_b32", {"S1": 64 + 7}, {"D0": 7}),
        ("v_readfirstlane_b32", {"EXEC": 0b11000}, {"D0": 3}),
        ("v_writelane_b32", {"S0": 9, "S1": 5}, {"VGPR": {(5, 1): 9}}),
        ("ds_read2_b32", {"ADDR": 0}, {"RETURN_DATA": 0x07060504_03020100}),
        ("ds_write_b8_d16_hi", {"DATA": 0x00AB0000}, {"MEM": {1: 0xAB}}),
        ("ds_read_i8", {"ADDR": 200}, {"RETURN_DATA": 0xFFFFFFC8}),
    ],
)
def test_an_opcode_does_what_its_name_says(mnemonic: str, state: dict, expected: dict):
    if mnemonic == "s_setreg_imm32_b32":  # 0xF into bits [7:4] of MODE (register 1)
        state = {"SIMM16": 1 | 4 << 6 | 3 << 11, "SIMM32": 0xF, "HW_REGISTERS": {1: 0x200}}
    assert evaluate(mnemonic, {**_STATE, **state}) == expected


@pytest.mark.parametrize(
    "mnemonic, expected", [("v_max_f32", 0), ("v_min_f32", 0x80000000), ("v_maximum3_f32", 0)]
)
def test_the_zeros_are_ordered(mnemonic: str, expected: int):
    for sources in ((0, 0x80000000, 0x80000000), (0x80000000, 0, 0x80000000)):
        assert _of(mnemonic, *sources)["D0"] == expected


def test_max_drops_a_nan_and_maximum_keeps_it():
    nan, signalling, two = 0x7FC00001, 0x7F800001, _bits(2)
    assert _of("v_max_f32", nan, two)["D0"] == two
    assert _of("v_max_f32", signalling, two)["D0"] == signalling | 0x400000
    assert _of("v_maximum3_f32", nan, two, two)["D0"] == nan
    assert _of("v_med3_f32", two, _bits(1), _bits(3))["D0"] == two


def test_rndne_is_numpys_rint():
    rng = np.random.default_rng(0)
    halves = [0.5, -0.5, 1.5, 2.5, 0.49999997, -0.3, 8388609.0, 1e30, np.inf, -0.0]
    for number in np.array([*halves, *rng.normal(0, 100, 300)], np.float32):
        assert _of("v_rndne_f32", _bits(number))["D0"] == _bits(np.rint(number))
        assert _of("v_floor_f32", _bits(number))["D0"] == _bits(np.floor(number))


def test_approximations_are_near_numpys():
    for number in np.random.default_rng(0).uniform(0.01, 20, 100).astype(np.float32):
        for mnemonic, exact in (
            ("v_exp_f32", np.exp2(number)),
            ("v_log_f32", np.log2(number)),
            ("v_rcp_f32", 1 / number),
            ("v_rsq_f32", 1 / np.sqrt(number)),
        ):
            got = np.uint32(_of(mnemonic, _bits(number))["D0"]).view(np.float32)
            np.testing.assert_allclose(got, exact, rtol=5e-7)


def test_class_names_each_kind_of_number():
    kinds = [0x7F800001, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001, 0x80000000]
    kinds += [0, 1, 0x3F800000, 0x7F800000]
    for bit, pattern in enumerate(kinds):
        state = {"D0": 0, "FP_DENORM": 0}
        assert _of("v_cmp_class_f32", pattern, 1 << bit, **state)["D0"] == 1
        assert _of("v_cmp_class_f32", pattern, 0x3FF & ~(1 << bit), **state)["D0"] == 0


def test_scaled_fp8_conversions_divide_and_multiply_by_the_scale():
    scale = _bits(4)
    packed = _of("v_cvt_scalef32_pk_fp8_f32", _bits(6), _bits(-12), scale, OPSEL=8)["D0"]
    assert packed == 0xC43C << 16  # 1.5 and -3 in E4M3
    wide = _of("v_cvt_scalef32_pk_bf16_fp8", packed, scale, OPSEL=1)["D0"]
    assert wide == 0xC1400000 | 0x40C0  # 6 and -12 in bf16


def test_cvt_pk_bf16_rounds_to_nearest_even():
    assert _of("v_cvt_pk_bf16_f32", 0x3F808000, 0x3F818000)["D0"] == 0x3F823F80


def test_lanes_swap_and_permute():
    swapped = evaluate("v_permlane32_swap_b32", _STATE)["VGPR"]
    assert swapped[(0, 0)] == _REGISTERS[(32, 1)] and swapped[(32, 1)] == _REGISTERS[(0, 0)]
    addresses = {(lane, 3): 4 * (63 - lane) for lane in _LANES}
    state = {**_STATE, "VGPR": _REGISTERS | addresses, "ADDR": 3, "EXEC": 0b11}
    pulled = evaluate("ds_bpermute_b32", state)["VGPR"]
    assert pulled == {(0, 1): 0, (1, 1): 0}  # lanes 63 and 62 are off and give zeros
    pulled = evaluate("ds_bpermute_b32", {**state, "EXEC": (1 << 64) - 1})["VGPR"]
    assert pulled == {(lane, 1): _REGISTERS[(63 - lane, 2)] for lane in _LANES}
