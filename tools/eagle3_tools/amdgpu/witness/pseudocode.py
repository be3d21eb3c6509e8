"""Evaluate AMD's instruction pseudocode, as a reference for the emulator's opcodes.

It shares no code with the emulator's semantics. The texts are those of AMD's CDNA3 and CDNA4 ISA
documents; readings.py lists corrections of wrong or ambiguous ones.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from eagle3_tools.amdgpu.witness.bits import Bits, as_type, integer
from eagle3_tools.amdgpu.witness.evaluator import Evaluator
from eagle3_tools.amdgpu.witness.parser import parse
from eagle3_tools.amdgpu.witness.readings import corrected_text, text_of, why_unreadable
from eagle3_tools.amdgpu.witness.registers import Registers
from eagle3_tools.amdgpu.witness.syntax import Body
from eagle3_tools.amdgpu.witness.tokens import PseudocodeError

__all__ = ["PseudocodeError", "evaluate", "run_text", "text_of", "why_unreadable"]

_DEFAULTS = {
    **{"D0": 0, "D1": 0, "VDATA": 0, "RETURN_DATA": 0, "SDATA": 0},
    **{"laneId": 0, "OPSEL": 0, "INST.OMOD": 0, "INST.ABS": 0, "INST.NEG": 0},
    **{"WAVE_MODE.IEEE": 1, "WAVE_STATUS.PRIV": 0, "ROUND_MODE": 0, "FP_DENORM": 3},
}
# A class test examines the bit pattern in any mode.
_IGNORES_FP_DENORM = ("v_cmp_class_f32",)


def evaluate(mnemonic: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the opcode writes for one lane, or for the scalar unit.

    `mnemonic` is LLVM's in lower case, without _e32, _e64, _dpp or _sdwa. Operands are those after
    DPP, SDWA, abs and neg; results those before clamp and omod. `state` has the unsigned patterns
    that the text reads, by name:

    - S0, S1, S2, D0: registers of 32 or 64 bits; D0 is the old content. S0 or S1 is the immediate
      of s_movk_i32, s_addk_i32, s_mulk_i32 or s_cmpk_*.
    - SIMM16, SIMM32: other immediates and literals. PC for branches.
    - SCC, VCC, EXEC: 1, 64 and 64 bits; EXECZ and VCCZ if a branch reads them.
    - laneId, OPSEL, INST.OMOD, INST.ABS, INST.NEG: default 0. WAVE_MODE.IEEE: default 1.
    - FP_DENORM: MODE's two bits for f32, default 3. The value 1 keeps a source's denormals, 2 a
      result's; others are flushed to a zero of the same sign.
    - VGPR: {(lane, register): 32 bits}. In opcodes that cross lanes, SRC0, VDST, ADDR and DATA0 are
      then register numbers.
    - MEM: {address: byte}. `address` is the result of CalcGlobalAddr and the like. ADDR is an LDS
      address, with the instruction's offset if the text does not add it. OFFSET, OFFSET0, OFFSET1,
      DATA, DATA2, VDATA are named as in the texts.
    - HW_REGISTERS: {number: 32 bits}.

    The result has the same form. D0 and the like are complete: bits that the text does not write
    are old (a 16-bit opcode writes 16). VCC of v_div_scale_f32 is this lane's bit. VGPR and MEM
    have written elements only. Arithmetic rounds once to nearest even; the payload of new NaNs is
    not AMD's. Raises PseudocodeError if the state lacks a name, ValueError if the text is
    unreadable.
    """
    if mnemonic in _IGNORES_FP_DENORM:
        state = {**state, "FP_DENORM": 3}
    return run_text(_readable_text(mnemonic), state)


def run_text(text: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate a given text as `evaluate` does; raise PseudocodeError if it is not pseudocode."""
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
    """Evaluates another opcode's D0 for given operands, in the wave's modes."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.modes = {name: state[name] for name in ("WAVE_MODE.IEEE", "FP_DENORM")}

    def __call__(self, mnemonic: str, operands: tuple[Bits, ...]) -> Bits:
        if why_unreadable(mnemonic):
            raise PseudocodeError(f"expected a function of the pseudocode, got {mnemonic}")
        sources = {f"S{i}": operand.pattern for i, operand in enumerate(operands)}
        result = evaluate(mnemonic, {**self.modes, **sources})["D0"]
        return as_type(integer("b", 64, result), operands[0].type)
