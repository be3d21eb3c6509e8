"""Says what AMD's own text makes of an opcode: `evaluate` runs the text on given registers.

It is the second witness of the emulator's semantics and shares nothing with them. The texts are
those of AMD's CDNA3 and CDNA4 ISA documents; readings.py lists how wrong or ambiguous ones are
read.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from eagle3_tools.amdgpu.witness.pseudocode.bits import Bits, as_type, integer
from eagle3_tools.amdgpu.witness.pseudocode.evaluator import Evaluator
from eagle3_tools.amdgpu.witness.pseudocode.parser import parse
from eagle3_tools.amdgpu.witness.pseudocode.readings import corrected_text, text_of, why_unreadable
from eagle3_tools.amdgpu.witness.pseudocode.registers import Registers
from eagle3_tools.amdgpu.witness.pseudocode.syntax import Body
from eagle3_tools.amdgpu.witness.pseudocode.tokens import PseudocodeError

__all__ = ["PseudocodeError", "evaluate", "run_text", "text_of", "why_unreadable"]

_DEFAULTS = {
    **{"D0": 0, "D1": 0, "VDATA": 0, "RETURN_DATA": 0, "SDATA": 0},
    **{"laneId": 0, "OPSEL": 0, "INST.OMOD": 0, "INST.ABS": 0, "INST.NEG": 0},
    **{"WAVE_MODE.IEEE": 1, "WAVE_STATUS.PRIV": 0, "ROUND_MODE": 0, "FP_DENORM": 3},
}
# A class test looks at the pattern, whatever the mode.
_IGNORES_FP_DENORM = ("v_cmp_class_f32",)


def evaluate(mnemonic: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """What the opcode writes for one lane, or for the scalar unit.

    `mnemonic` is LLVM's in lower case, without _e32, _e64, _dpp or _sdwa: operands come as they
    are after DPP, SDWA, abs and neg, and results go before clamp and omod. `state` has by name the
    unsigned patterns that the text reads:
      S0, S1, S2, D0      registers of 32 or 64 bits; D0 is the old content
      S0 or S1            the immediate of s_movk_i32, s_addk_i32, s_mulk_i32, or of s_cmpk_*
      SIMM16, SIMM32      other immediates and literals; PC for branches
      SCC, VCC, EXEC      1, 64 and 64 bits; EXECZ and VCCZ where a branch reads them
      laneId, OPSEL, INST.OMOD, INST.ABS, INST.NEG (zeros unless given)
      WAVE_MODE.IEEE      1 unless given
      FP_DENORM           MODE's two bits for f32, 3 unless given: 1 keeps a source's denormals,
                          2 a result's; what is not kept is flushed to a zero of its sign
      VGPR                {(lane, register): 32 bits}; SRC0, VDST, ADDR, DATA0 are then register
                          numbers in the opcodes that cross lanes
      MEM                 {address: byte}; `address` is what CalcGlobalAddr and its like give, ADDR
                          an LDS address, with the instruction's offset where the text adds none;
                          OFFSET, OFFSET0, OFFSET1, DATA, DATA2, VDATA as the texts name them
      HW_REGISTERS        {number: 32 bits}
    The result has what the text writes, in the same form: D0 and the like whole (the bits that the
    text does not write are the old ones: a 16-bit opcode writes 16), v_div_scale_f32's VCC as this
    lane's bit, of VGPR and MEM the elements written.

    Arithmetic rounds once to nearest even. The payload of a NaN that it makes is not AMD's. Raises
    PseudocodeError where the state lacks a name, ValueError where the opcode is not readable.
    """
    if mnemonic in _IGNORES_FP_DENORM:
        state = {**state, "FP_DENORM": 3}
    return run_text(_readable_text(mnemonic), state)


def run_text(text: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """As `evaluate`, for a text of one's own. Raises PseudocodeError where it is no pseudocode."""
    full = _DEFAULTS | dict(state)
    registers = Registers(full)
    evaluator = Evaluator(
        registers,
        _TextCall(full),
        denormal_inputs=bool(full["FP_DENORM"] & 1),
        denormal_outputs=bool(full["FP_DENORM"] & 2),
    )
    evaluator.run(_program(text))
    return registers.written()


_readable_text = cache(corrected_text)


@cache
def _program(text: str) -> Body:
    return parse(text)


class _TextCall:
    """Another opcode's D0 for the given operands, in the wave's modes."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.modes = {name: state[name] for name in ("WAVE_MODE.IEEE", "FP_DENORM")}

    def __call__(self, mnemonic: str, operands: tuple[Bits, ...]) -> Bits:
        if why_unreadable(mnemonic):
            raise PseudocodeError(f"expected a function of the pseudocode, got {mnemonic}")
        sources = {f"S{i}": operand.pattern for i, operand in enumerate(operands)}
        result = evaluate(mnemonic, {**self.modes, **sources})["D0"]
        return as_type(integer("b", 64, result), operands[0].type)
