"""Evaluate AMD's instruction pseudocode, as a reference for the emulator's opcodes.

It shares no code with the emulator's semantics. The texts are those of AMD's CDNA3 and CDNA4 ISA
documents; readings.py lists corrections of wrong or ambiguous ones.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, partial
from typing import Any

from eagle3_tools.amdgpu.witness import floats
from eagle3_tools.amdgpu.witness.bits import (
    Bits,
    PseudocodeError,
    Type,
    as_type,
    integer,
    type_named,
)
from eagle3_tools.amdgpu.witness.functions import function_named
from eagle3_tools.amdgpu.witness.readings import corrected_text, why_unreadable
from eagle3_tools.amdgpu.witness.translation import program_of
from eagle3_tools.amdgpu.witness.values import (
    Array,
    File,
    Memory,
    Value,
    between,
    bits_of,
    join,
    stored_as,
)

_DEFAULTS = {
    **{"D0": 0, "D1": 0, "VDATA": 0, "RETURN_DATA": 0, "SDATA": 0},
    **{"laneId": 0, "OPSEL": 0, "INST.OMOD": 0, "INST.ABS": 0, "INST.NEG": 0},
    **{"WAVE_MODE.IEEE": 1, "WAVE_STATUS.PRIV": 0, "ROUND_MODE": 0, "TRAPSTS": 0},
}
_OUTPUTS = ("D0", "D1", "SCC", "VCC", "EXEC", "PC", "VDATA", "RETURN_DATA", "SDATA")
_WIDTHS = {"SCC": 1} | dict.fromkeys(("DATA", "DATA2", "VDATA", "RETURN_DATA", "SDATA"), 512)
"""Bits of what the state has; others have 64."""
_CONSTANTS = {
    "INF": floats.infinity(floats.F64, negative=False),
    "NAN": floats.nan(floats.F64),
    # v_div_fixup_f32's results for a quotient that underflows or overflows.
    "UNDERFLOW_F32": floats.zero(floats.F32, negative=False),
    "OVERFLOW_F32": floats.infinity(floats.F32, negative=False),
    "ROUND_NEAREST_EVEN": integer("u", 2, 0),
}
_HELPERS: dict[str, Callable[..., Any]] = {
    "join": join,
    "between": between,
    "number": lambda kind, width, number: Value(integer(kind, width, number)),
    "real": lambda name, digits: Value(floats.rounded(type_named(name), Fraction(digits))),
    "nop": lambda: None,
    # A wave may write all bits of its registers.
    "HwRegWriteMask": lambda *_: Value(integer("i", 32, -1)),
}


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
    - VGPR: {(lane, register): 32 bits}. In opcodes that cross lanes, SRC0, VDST, ADDR and DATA0 are
      then register numbers.
    - MEM: {address: byte}. `address` is the result of CalcGlobalAddr and the like. ADDR is an LDS
      address, with the instruction's offset if the text does not add it. OFFSET, OFFSET0, OFFSET1,
      DATA, DATA2, VDATA are named as in the texts.
    - HW_REGISTERS: {number: 32 bits}.

    The result has the same form. D0 and the like are complete: bits that the text does not write
    are old (a 16-bit opcode writes 16). VCC of v_div_scale_f32 is this lane's bit. VGPR and MEM
    have written elements only. Arithmetic rounds once to nearest even and keeps denormals; the
    payload of new NaNs is not AMD's. Raises PseudocodeError if the state lacks a name, ValueError
    if the text is unreadable.
    """
    return run_text(_readable_text(mnemonic), state)


_readable_text = cache(corrected_text)


def run_text(text: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate a given text as `evaluate` does; raise PseudocodeError if it is not pseudocode."""
    names = _Names(_DEFAULTS | dict(state))
    exec(program_of(text), names)
    outputs = {name: names[name].pattern for name in _OUTPUTS if name in names}
    return outputs | {name: file.written for name, file in names.files.items() if file.written}


class _Names(dict[str, Any]):
    """Variables of a run. What is not there is read from the state, or is a function."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(_HELPERS, declare=self._declare, __builtins__={})
        self.state = {name.replace(".", "_"): value for name, value in state.items()}
        kinds = {"VGPR": File, "HW_REGISTERS": File, "MEM": Memory}
        self.files = {name: kind(state.get(name, {})) for name, kind in kinds.items()}
        self._types: dict[str, Type] = {}

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, Bits | bool):
            declared = self._types.get(name)
            stored = stored_as(value, declared) if declared else bits_of(value)
            value = Value(stored, partial(self.__setitem__, name))
        super().__setitem__(name, value)

    def __missing__(self, name: str) -> Any:
        if name in self.files:
            return self.files[name]
        if name in _CONSTANTS:
            return Value(_CONSTANTS[name])
        # The texts write parts of temporaries that they do not declare.
        if name in self.state or name.startswith("tmp"):
            held = integer("b", _WIDTHS.get(name, 64), self.state.get(name, 0))
            return Value(held, partial(self.__setitem__, name))
        function = function_named(name)
        if function is None and name.startswith(("s_", "v_")) and why_unreadable(name) is None:
            function = partial(self._call_text, name)
        if function is None:
            raise PseudocodeError(f"expected a state or a function of the pseudocode, got {name}")
        return lambda *operands: Value(function(*map(bits_of, operands)))

    def _declare(self, name: str, type_name: str, length: int) -> Any:
        type_ = type_named(type_name)
        if length:
            return Array(type_, length)
        if name in self.state:  # The texts of ds_ opcodes declare their operands.
            return self[name]
        self._types[name] = type_
        return Value(Bits(type_, 0))

    def _call_text(self, mnemonic: str, *operands: Bits) -> Bits:
        """Evaluate another opcode's D0, as v_max3_f32 does v_max_f32's."""
        sources = {f"S{i}": operand.pattern for i, operand in enumerate(operands)}
        modes = {"WAVE_MODE.IEEE": self.state["WAVE_MODE_IEEE"]}
        result = evaluate(mnemonic, modes | sources)["D0"]
        return as_type(integer("b", 64, result), operands[0].type)
