"""Corrections of AMD's pseudocode where it is wrong or ambiguous, and unreadable opcodes."""

import importlib
import re
from dataclasses import dataclass
from functools import cache

_ENCODING = re.compile(r"_e(32|64)$")


@cache
def _by_mnemonic() -> dict[str, str]:
    """Return CDNA's texts, and RDNA4's for opcodes that CDNA's texts call but do not define."""
    found: dict[str, str] = {}
    for family in ("cdna", "rdna4"):
        module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{family}.str_pcode")
        for opcode, text in module.PCODE.items():
            mnemonic = _ENCODING.sub("", opcode.name.lower())
            if family == "cdna" or mnemonic in ("v_maximum_f32", "v_minimum_f32"):
                found[mnemonic] = text
    return found


def amd_text(mnemonic: str) -> str | None:
    """Return the unchanged text for a mnemonic such as "v_add_f32", or None."""
    return _by_mnemonic().get(mnemonic)


@dataclass(frozen=True)
class Correction:
    """Replaces the regex `wrong` by `right` in the texts of opcodes that match `opcodes`."""

    opcodes: str
    wrong: str
    right: str
    why: str


CORRECTIONS = (
    Correction(
        r"v_(min|max)_f(16|32|64)",
        r"(64'F\(S\d\.f\d\d\)|S\d\.f64) == ([+-]0\.0)",
        r"identical(\1, \2)",
        "As numbers +0 and -0 are equal: the branch that orders the zeros means the signs too.",
    ),
    Correction(
        r"v_div_scale_f32",
        r"\A",
        "D0.f32 = S0.f32;\n",
        "The text leaves D0 unwritten where nothing is scaled; the operand goes through as it is.",
    ),
    Correction(
        r"v_div_scale_f32",
        r"1\.0 / 64'F\(S1\.f32\) == DENORM\.f64",
        "isDENORM(1.0F / S1.f32)",
        "DENORM is no value but a property. No f32 has a reciprocal that is denormal in f64.",
    ),
    Correction(
        r"v_div_scale_f32",
        r"(S2\.f32 / S1\.f32|S1\.f32) == DENORM\.f32",
        r"isDENORM(\1)",
        "DENORM is no value but a property.",
    ),
    Correction(
        r"v_div_scale_f32",
        r"(isDENORM\(1\.0F / S1\.f32\)\) && [^;]+;\s+if S0\.f32 == S1\.f32 then[^;]+?), 64\)",
        r"\1, -64)",
        "A denominator whose reciprocal is denormal is above 2**126: times 2**64 it is infinite.",
    ),
    Correction(
        r"v_div_fmas_f32",
        r"2\.0F \*\* 32 \* fma\(S0\.f32, S1\.f32, S2\.f32\)",
        "scaled_fma(S0.f32, S1.f32, S2.f32, exponent(S2.f32) > 127 ? 64 : -64)",
        "It undoes v_div_scale_f32's 2**64 in either direction, and rounds once.",
    ),
    Correction(
        r"v_div_fixup_f32",
        r"exponent\(S1\.f32\) == 255",
        "exponent(S0.f32) == 255",
        "S1 was found finite above. It is the quotient S0 that overflows to infinity or NaN.",
    ),
    Correction(
        r"v_ldexp_f32",
        r"S0\.f32 \* 2\.0F \*\* S1\.i32",
        "ldexp(S0.f32, S1.i32)",
        "The power of two need not be an f32, and the product is rounded once.",
    ),
    Correction(
        r"v_rndne_f32",
        r"floor\(S0\.f32 \+ 0\.5F\)",
        "32'F(floor(64'F(S0.f32) + 0.5))",
        "The sum is exact: rounded to f32, 0.49999997 + 0.5 is 1.",
    ),
    Correction(
        r"v_rndne_f32",
        r"\Z",
        ";\nD0.f32 = sign(S0.f32) ? -abs(D0.f32) : D0.f32",
        "A result of zero has the operand's sign (IEEE 754, roundToIntegralTiesToEven).",
    ),
    Correction(
        r"v_frexp_exp_i32_f32",
        r"exponent\(S0\.f32\) - 127 \+ 1",
        "frexp_exponent(S0.f32)",
        "It goes with the mantissa in [0.5, 1): a denormal's is below -125, that of 0 is 0.",
    ),
    Correction(
        r"v_pk_mov_b32",
        r"(S[01]|D0)\.u32\[",
        r"\1[",
        "The slices reach bit 63.",
    ),
    Correction(
        r"v_bitop3_b(16|32)",
        r"\bD\.b",
        "D0.b",
        "D is D0.",
    ),
    Correction(
        r"v_cvt_scalef32_.*",
        r"VGPR\[laneId\]\[SRC0\.u32\]",
        "S0",
        "This lane's source register is operand S0.",
    ),
    Correction(
        r"v_cvt_scalef32_.*",
        r"VGPR\[laneId\]\[VDST\.u32\]",
        "D0",
        "This lane's destination register is operand D0.",
    ),
    Correction(
        r"s_c?branch.*",
        r"signext\(SIMM16\.i16 \* 16'4\)",
        "signext(SIMM16.i16) * 4LL",
        "A product of 16 bits would wrap.",
    ),
)

_PRODUCT = "The text is a product of matrices; it does not say which lane holds which element."
_NO_TEXT = "The wheel has no text of AMD's for it."
UNREADABLE = {
    r"v_s?mfma.*": _PRODUCT,
    r"s_waitcnt": "The text lists the fields of the immediate; what is waited for is prose.",
    r"ds_swizzle_b32": "The text is the table of the FFT mode's lanes, without a formula.",
    r"s_wqm_.*|s_quadmask_.*|s_sleep|s_trap|v_m?sad_.*": "The text is not in the pseudocode.",
}


def why_unreadable(mnemonic: str) -> str | None:
    """Return the reason why the opcode's text cannot be evaluated, or None."""
    for opcodes, reason in UNREADABLE.items():
        if re.fullmatch(opcodes, mnemonic):
            return reason
    return _NO_TEXT if amd_text(mnemonic) is None else None


def corrected_text(mnemonic: str) -> str:
    """Return AMD's text with corrections; raise ValueError if it cannot be evaluated."""
    text = amd_text(mnemonic)
    if text is None or why_unreadable(mnemonic):
        raise ValueError(f"expected an opcode with readable text, got {mnemonic}")
    for correction in corrections_of(mnemonic):
        text = re.sub(correction.wrong, correction.right, text)
    return text


def corrections_of(mnemonic: str) -> list[Correction]:
    return [each for each in CORRECTIONS if re.fullmatch(each.opcodes, mnemonic)]
