"""Registers, memory and variables of a run of pseudocode."""

from collections.abc import Mapping
from typing import Any

from eagle3_tools.amdgpu.witness import floats
from eagle3_tools.amdgpu.witness.bits import Bits, Type, integer
from eagle3_tools.amdgpu.witness.floats import F32, F64
from eagle3_tools.amdgpu.witness.tokens import PseudocodeError

CONSTANTS = {
    "INF": floats.infinity(F64, negative=False),
    "NAN": floats.nan(F64),
    # v_div_fixup_f32's results for a quotient that underflows or overflows.
    "UNDERFLOW_F32": floats.zero(F32, negative=False),
    "OVERFLOW_F32": floats.infinity(F32, negative=False),
    "ROUND_NEAREST_EVEN": integer("u", 2, 0),
}
_OUTPUTS = ("D0", "D1", "SCC", "VCC", "EXEC", "PC", "VDATA", "RETURN_DATA", "SDATA")
_WIDE = ("DATA", "DATA2", "VDATA", "RETURN_DATA", "SDATA")


class Registers:
    """The initial state (see pseudocode.evaluate) and the values that the text has written."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = state
        self.names: dict[str, Bits] = {}
        self.arrays: dict[str, list[Bits]] = {}
        self._declared: dict[str, Type] = {}
        self._files: dict[str, dict[Any, int]] = {}

    def written(self) -> dict[str, Any]:
        """Return the written outputs as patterns; of VGPR and MEM the written elements."""
        outputs = {name: self.names[name].pattern for name in _OUTPUTS if name in self.names}
        return outputs | self._files

    def declare(self, name: str, type_: Type, length: int | None) -> None:
        if length is not None:
            self.arrays[name] = [Bits(type_, 0)] * length
        elif name not in self.state:  # The texts of ds_ opcodes declare their operands.
            self._declared[name] = type_

    def declared_type(self, name: str) -> Type | None:
        return self._declared.get(name)

    def read(self, name: str) -> Bits:
        """Return a value; raise PseudocodeError if neither the text nor the state defines it."""
        if name in self.names:
            return self.names[name]
        if name in self._declared:
            return Bits(self._declared[name], 0)
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name not in self.state:
            raise PseudocodeError(f"expected a state with {name}, got one with {[*self.state]}")
        return integer("b", _width(name), self.state[name])

    def read_to_update(self, name: str) -> Bits:
        """Read a value to update in part; an undeclared variable starts as zeros."""
        known = name in self.names or name in self._declared or name in self.state
        return self.read(name) if known else Bits(Type("b", 64), 0)

    def element(self, file: str, key: Any) -> Bits:
        """Return 32 bits of VGPR[lane, register] or HW_REGISTERS, or 8 bits of MEM[address]."""
        width = 8 if file == "MEM" else 32
        for source in (self._files, self.state):
            if key in source.get(file, {}):
                return integer("b", width, source[file][key])
        raise PseudocodeError(f"expected a state with {file} {key}, got none")

    def set_element(self, file: str, key: Any, value: Bits) -> None:
        self._files.setdefault(file, {})[key] = value.pattern & 0xFFFFFFFF

    def load(self, address: int, type_: Type) -> Bits:
        at = range(address, address + type_.width // 8)
        content = bytes(self.element("MEM", byte).pattern for byte in at)
        return Bits(type_, int.from_bytes(content, "little"))

    def save(self, address: int, value: Bits) -> None:
        for offset, byte in enumerate(value.pattern.to_bytes(value.type.width // 8, "little")):
            self.set_element("MEM", address + offset, integer("u", 8, byte))


def _width(name: str) -> int:
    if name == "SCC":
        return 1
    return 512 if name in _WIDE else 64
