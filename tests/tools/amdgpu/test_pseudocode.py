"""AMD's pseudocode where no opcode's comparison with the emulator says which of both is right."""

import pytest

from eagle3_tools.amdgpu.witness.bits import PseudocodeError
from eagle3_tools.amdgpu.witness.pseudocode import run_text


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("S0.u32 << 32U", 0),
        ("S0.i32 < 0 ? 1U : 2U", 1),
        ("S0.u32 < 0U ? 1U : 2U", 2),
        ("S1.u32[0 : 15].u32", 0x5357),
        ("{ 8'0xff, S1.u8, 16'0U }", 0xFFCA0000),
        ("16'65535 * 16'4", 0xFFFC),
        ("1U + 2U * 3U", 7),
        ("32'F(S1.i16)", 0xC5A9B000),
        ("32'F(0xffc00000)", 0xFFC00000),
        ("f32_to_i32(-INF.f32)", 0x80000000),
        ("f32_to_i32(NAN.f32)", 0),
        ("!(S2.f32 == S0.f32)", 1),
        ("S2.f32 <> S0.f32", 0),
    ],
)
def test_an_expression_has_its_value(expression: str, expected: int):
    state = {"S0": 0xFFFFFFFF, "S1": 0xEACA, "S2": 0x40000000}
    assert run_text(f"D0 = {expression}", state) == {"D0": expected}


@pytest.mark.parametrize(
    "target, expected",
    [("D0.u32", 0xAAAAAAAA_00001234), ("D0[31 : 16].b16", 0xAAAAAAAA_1234AAAA), ("D0", 0x1234)],
)
def test_a_partial_write_leaves_the_other_bits(target: str, expected: int):
    assert run_text(f"{target} = 0x1234", {"D0": 0xAAAAAAAA_AAAAAAAA}) == {"D0": expected}


@pytest.mark.parametrize(
    "sources, expected",
    [
        ((0x3F800001, 0x3F800001, 0xBF800002), 0x28800000),
        ((0x33800000, 0x3F800000, 0x3F800000), 0x3F800000),
        ((0x33800001, 0x3F800000, 0x3F800000), 0x3F800001),
        ((0x00000001, 0x00000001, 0x33800000), 0x33800000),
        ((0x80000001, 0x00000001, 0x00000000), 0x80000000),
    ],
)
def test_fma_rounds_once(sources: tuple[int, ...], expected: int):
    """(1 + 2**-23) ** 2 - (1 + 2**-22) is 2**-46; ties go to even, whatever float64 has left."""
    state = {f"S{k}": source for k, source in enumerate(sources)}
    assert run_text("D0.f32 = fma(S0.f32, S1.f32, S2.f32)", state) == {"D0": expected}


@pytest.mark.parametrize(
    "text",
    [
        "D = A (16x128) * B (128x16) + C (16x16)",
        "if SCC then D0.u32 = 1U",
        "D0.u32 = S3.u32",
        "D0.u32 = unknown(S0.u32)",
        "declare a : 32'X",
        "S0.__class__",
        "(lambda: 1)()",
        "open(S0.u32)",
    ],
)
def test_what_is_no_pseudocode_is_refused(text: str):
    with pytest.raises(PseudocodeError, match="expected"):
        run_text(text, {"S0": 1, "S1": 1, "SCC": 0})
