"""Each construct of AMD's pseudocode, by results that can be verified by hand."""

import pytest

from eagle3_tools.amdgpu.witness.pseudocode import PseudocodeError, run_text

TWO = 0x40000000  # f32


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("S0.u32 + 1U", 0),
        ("64'U(S0.u32) + 1ULL", 1 << 32),
        ("32'U(S0.i32 >> 4U)", 0xFFFFFFFF),
        ("S0.u32 >> 4U", 0x0FFFFFFF),
        ("S0.u32 << 32U", 0),
        ("(1U << 32U) - 1U", 0xFFFFFFFF),
        ("S0.i32 < 0 ? 1U : 2U", 1),
        ("S0.u32 < 0U ? 1U : 2U", 2),
        ("S1[7 : 4].u32", 0xC),
        ("S1.u32[7 : 4].u32", 0xC),
        ("S1.u32[0 : 15].u32", 0x5357),
        ("S1.u32[2].u32", 0),
        ("S1.u32[3].u32", 1),
        ("{ S1[3 : 0], S1[15 : 12] }", 0xAE),
        ("{ 8'0xff, S1.u8, 16'0U }", 0xFFCA0000),
        ("32'I(signext(S1.i8))", 0xFFFFFFCA),
        ("32'I(signext(S1.i16))", 0xFFFFEACA),
        ("signext_from_bit(S1.i32, 4U)", 0xFFFFFFFA),
        ("signext_from_bit(S1.i32, 3U)", 2),
        ("32'U(S0.u24)", 0xFFFFFF),
        ("~S1.u16", 0x1535),
        ("!(S1.u32 == 0U)", 1),
        ("S1.u32 <> 0U", 1),
        ("1U + 2U * 3U", 7),
        ("1'1U + 1'1U", 0),
        ("16'65535 * 16'4", 0xFFFC),
        ("32'F(S1.i16)", 0xC5A9B000),
        ("32'F(0xffc00000)", 0xFFC00000),
        ("32'F(1.5)", 0x3FC00000),
        ("-INF.f32", 0xFF800000),
        ("-0.0F", 0x80000000),
        ("1.0F / 4.0F", 0x3E800000),
        ("64'F(S2.f32)", 0x4000000000000000),
        ("f32_to_i32(-S2.f32)", 0xFFFFFFFE),
        ("f32_to_u32(-S2.f32)", 0),
        ("f32_to_i32(INF.f32)", 0x7FFFFFFF),
        ("f32_to_i32(NAN.f32)", 0),
        ("S0.f32 == S0.f32", 0),
        ("S2.f32 <> S0.f32", 0),
        ("!(S2.f32 == S0.f32)", 1),
    ],
)
def test_an_expression_has_its_value(expression: str, expected: int):
    state = {"S0": 0xFFFFFFFF, "S1": 0xEACA, "S2": TWO}
    assert run_text(f"D0 = {expression}", state) == {"D0": expected}


@pytest.mark.parametrize("choice, expected", [(0, 10), (1, 20), (2, 30), (3, 40)])
def test_the_first_branch_that_holds_is_taken(choice: int, expected: int):
    text = """
        if S0.u32 == 0U then
        D0.u32 = 10U
        elsif S0.u32 == 1U then
        D0.u32 = 20U;
        // A comment.
        elsif S0.u32 == 2U then
        D0.u32 = 30U
        else
        D0.u32 = 40U
        endif"""
    assert run_text(text, {"S0": choice}) == {"D0": expected}


def test_an_if_without_else_may_write_nothing():
    assert run_text("if SCC then\nD0.u32 = 1U\nendif", {"SCC": 0}) == {}


def test_a_loop_includes_both_ends_and_break_leaves_it():
    counted = "tmp = 0U;\nfor i in 2 : 4 do\ntmp += 1U\nendfor;\nD0.u32 = tmp"
    assert run_text(counted, {}) == {"D0": 3}
    found = """
        for i in 0 : 31 do
        if S0.u32[i] == 1'1U then
        D0.i32 = i;
        break
        endif
        endfor"""
    assert run_text(found, {"S0": 0b101000}) == {"D0": 3}


def test_a_declared_variable_keeps_its_type_and_an_array_its_elements():
    assert run_text("declare a : 8'U;\na = 300;\nD0.u32 = a.u32", {}) == {"D0": 44}
    text = "declare a : 8'B[4];\nfor i in 0 : 3 do\na[i] = S0[i * 8 + 7 : i * 8].b8\nendfor;\n"
    assert run_text(text + "D0.u32 = { a[0], a[1], a[2], a[3] }", {"S0": 0x01020304}) == {
        "D0": 0x04030201
    }


def test_a_lambda_returns_and_its_parameters_stay_inside():
    text = """
        a = 1U;
        F = lambda(a, b) (
        if a == b then
        return 7U
        else
        return a + b
        endif);
        D0.u32 = F(2U, 3U) + F(4U, 4U) + a"""
    assert run_text(text, {}) == {"D0": 13}


@pytest.mark.parametrize(
    "target, expected",
    [
        ("D0.u32", 0xAAAAAAAA_00001234),
        ("D0.u16", 0xAAAAAAAA_AAAA1234),
        ("D0[31 : 16].b16", 0xAAAAAAAA_1234AAAA),
        ("D0.u64[0]", 0xAAAAAAAA_AAAAAAAA),
        ("D0.u64[2]", 0xAAAAAAAA_AAAAAAAA),
        ("D0", 0x1234),
    ],
)
def test_a_partial_write_leaves_the_other_bits(target: str, expected: int):
    assert run_text(f"{target} = 0x1234", {"D0": 0xAAAAAAAA_AAAAAAAA}) == {"D0": expected}


def test_a_concatenation_is_assigned_part_by_part():
    text = "{ D1.u1, D0.u64 } = 65'B(65'U(S0.u64) + 65'U(S1.u64))"
    assert run_text(text, {"S0": (1 << 64) - 1, "S1": 2}) == {"D0": 1, "D1": 1}


def test_memory_is_little_endian_and_only_written_bytes_come_back():
    memory = {"MEM": {16: 1, 17: 2, 18: 3, 19: 4}, "ADDR": 16}
    assert run_text("D0.u32 = MEM[ADDR].u32", memory) == {"D0": 0x04030201}
    assert run_text("MEM[ADDR + 1U].b16 = 0xbeef", memory) == {"MEM": {17: 0xEF, 18: 0xBE}}


def test_registers_of_other_lanes_are_read_as_they_are_after_earlier_writes():
    text = "VGPR[0][1] = S0.b32;\nVGPR[2][1] = VGPR[0][1]"
    written = run_text(text, {"S0": 5, "VGPR": {}})
    assert written == {"VGPR": {(0, 1): 5, (2, 1): 5}}


@pytest.mark.parametrize(
    "fp_denorm, sum_of_denormal, halved_normal",
    [(0, 0, 0), (1, 0, 0), (2, 0, 0x00400000), (3, 3, 0x00400000)],
)
def test_denormals_are_flushed_as_the_mode_says(
    fp_denorm: int, sum_of_denormal: int, halved_normal: int
):
    state = {"FP_DENORM": fp_denorm, "S0": 1, "S1": 2, "S2": 0x00800000}
    assert run_text("D0.f32 = S0.f32 + S1.f32", state) == {"D0": sum_of_denormal}
    assert run_text("D0.f32 = S2.f32 * 0.5F", state) == {"D0": halved_normal}


@pytest.mark.parametrize(
    "text",
    [
        "D = A (16x128) * B (128x16) + C (16x16)",
        "D0.u32 = S0.u32 @ 1U",
        "if SCC then D0.u32 = 1U",
        "S0.u32 + 1U",
        "D0.u32 = S0.f32 & S1.f32",
        "D0.u32 = S3.u32",
        "declare a : 32'X",
    ],
)
def test_what_is_no_pseudocode_is_refused(text: str):
    with pytest.raises(PseudocodeError, match="expected"):
        run_text(text, {"S0": 1, "S1": 1, "SCC": 0})
