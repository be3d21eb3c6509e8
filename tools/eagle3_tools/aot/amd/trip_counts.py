"""Trip counts of loops that depend only on scalar registers and on sizes among the arguments.

A kernel's scalar instructions are executed from its entry. Values from memory, other than the given
arguments, and from vector registers are unknown, and so is the trip count of a loop whose end
depends on one.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from eagle3_tools.aot.amd.decode import EXEC, VCC, Instruction, Kind, Operand, signed
from eagle3_tools.aot.amd.flow import Flow, Loop

_MOST_BLOCKS = 100_000
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    **{"eq": operator.eq, "lg": operator.ne, "lt": operator.lt},
    **{"le": operator.le, "gt": operator.gt, "ge": operator.ge},
}
_COMPUTE: dict[str, Callable[[int, int], int]] = {
    **{"s_add": operator.add, "s_sub": operator.sub, "s_mul": operator.mul},
    **{"s_and": operator.and_, "s_or": operator.or_, "s_xor": operator.xor},
    "s_andn2": lambda a, b: a & ~b,
    "s_lshl": lambda a, b: a << (b & 31),
    "s_lshr": lambda a, b: a >> (b & 31),
    "s_ashr": lambda a, b: signed(a, 32) >> (b & 31),
}
_CHOOSE: dict[str, Callable[[int, int], bool]] = {"s_min": operator.le, "s_max": operator.ge}
"""Operations that keep one of two values, and set SCC if it is the first."""
_WITH_FLAG = ("s_and", "s_or", "s_xor", "s_andn2", "s_lshl", "s_lshr", "s_ashr")
"""Operations that set SCC if the result is not zero."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a launch. at: first scalar register of their address; words: 32-bit value by
    byte offset, of sizes that the launch says. trips: of the loops that load most, if only data
    decide them and the launch says how many."""

    at: int = 0
    words: Mapping[int, int] = field(default_factory=dict)
    trips: int | None = None


NOTHING_KNOWN = Arguments()


class _Scalars:
    """Known scalar state: registers of 32 bits, and the flag SCC (None if unknown)."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.registers: dict[int, int] = {EXEC: _MASK32, EXEC + 1: _MASK32}
        self.flag: bool | None = None

    def run(self, code: Iterable[Instruction]) -> None:
        """Execute scalar instructions; registers that others write become unknown."""
        for i in code:
            name = i.name.rpartition("_")[0]
            if name.startswith(("s_cmp_", "s_cmpk_")):
                self.flag = self._compare(i)
            elif i.name.startswith(("s_waitcnt", "s_nop", "s_barrier", "s_branch", "s_cbranch")):
                continue
            elif name in _CHOOSE:
                self._choose(i, name)
            elif self._loads_arguments(i):
                self._load(i)
            else:
                self._assign(i, self._result(i, name))
                if name in _COMPUTE:
                    value = self._result_of_target(i)
                    known = name in _WITH_FLAG and value is not None
                    self.flag = bool(value) if known else None

    def jumps(self, branch: Instruction) -> bool | None:
        """Return whether a branch is taken, None if unknown."""
        match branch.name:
            case "s_branch":
                return True
            case "s_cbranch_scc0" | "s_cbranch_scc1":
                return None if self.flag is None else self.flag == branch.name.endswith("1")
            case "s_cbranch_vccz" | "s_cbranch_vccnz":
                vcc = self._read(Operand(Kind.SCALAR, VCC, 64))
                return None if vcc is None else (vcc == 0) == branch.name.endswith("vccz")
        return None

    def _compare(self, i: Instruction) -> bool | None:
        places = [i.operands[k] for k in ("sdst", "ssrc0", "ssrc1") if k in i.operands]
        values = [self._read(place) for place in places]
        if i.name.startswith("s_cmpk"):
            extended = signed(i.fields["simm16"], 16) & _MASK32
            values.append(i.fields["simm16"] if i.name.endswith("u32") else extended)
        known = [value for value in values if value is not None]
        if len(known) != 2 or len(values) != 2:
            return None
        first, second = known
        if i.name.endswith("i32"):
            first, second = signed(first, 32), signed(second, 32)
        return _COMPARE[i.name.split("_")[2]](first, second)

    def _choose(self, i: Instruction, name: str) -> None:
        """Execute a minimum or maximum."""
        values = [self._read(i.operands[k]) for k in ("ssrc0", "ssrc1")]
        known = [value for value in values if value is not None]
        self.flag = None
        if len(known) == 2:
            first, second = (signed(v, 32) if i.name.endswith("i32") else v for v in known)
            self.flag = _CHOOSE[name](first, second)
        self._assign(i, known[0 if self.flag else 1] if self.flag is not None else None)

    def _loads_arguments(self, i: Instruction) -> bool:
        base, at = i.operands.get("sbase"), self.arguments.at
        return i.name.startswith("s_load") and base is not None and base.index == at

    def _load(self, i: Instruction) -> None:
        start = i.fields.get("offset", 0)
        for number, register in enumerate(i.operands["sdata"].registers):
            self.registers.pop(register, None)
            if start + 4 * number in self.arguments.words:
                self.registers[register] = self.arguments.words[start + 4 * number]

    def _result(self, i: Instruction, name: str) -> int | None:
        values = [self._read(i.operands[k]) for k in ("ssrc0", "ssrc1") if k in i.operands]
        if name in ("s_movk", "s_addk", "s_mulk"):
            constant, own = signed(i.fields["simm16"], 16), self._result_of_target(i)
            if name == "s_movk":
                return constant
            return None if own is None else own + constant if name == "s_addk" else own * constant
        if name == "s_cselect" and self.flag is not None:
            return values[0 if self.flag else 1]
        if name == "s_mov":
            return values[0]
        known = [value for value in values if value is not None]
        if name in _COMPUTE and len(known) == 2:
            return _COMPUTE[name](known[0], known[1])
        return None

    def _result_of_target(self, i: Instruction) -> int | None:
        return self._read(i.operands["sdst"]) if "sdst" in i.operands else None

    def _assign(self, i: Instruction, value: int | None) -> None:
        for place in ("sdst", "sdata", "vdst"):
            target = i.operands.get(place)
            if target is not None and target.kind is Kind.SCALAR and target.index != EXEC:
                for number, register in enumerate(target.registers):
                    if value is None:
                        self.registers.pop(register, None)
                    else:
                        self.registers[register] = value >> 32 * number & _MASK32

    def _read(self, operand: Operand) -> int | None:
        if operand.kind is Kind.CONSTANT:
            return operand.value
        if operand.kind is not Kind.SCALAR:
            return None
        parts = [self.registers.get(register) for register in operand.registers]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return sum(part << 32 * number for number, part in enumerate(known)) & _MASK64


def trip_count(flow: Flow, loop: Loop, arguments: Arguments = NOTHING_KNOWN) -> int | None:
    """Return how often the loop's first block runs, None if unknown."""
    scalars = _Scalars(arguments)
    for block in flow.path_to(loop.header):
        scalars.run(flow.blocks[block])
    block, count = loop.header, 0
    for _ in range(_MOST_BLOCKS):
        count += block == loop.header
        scalars.run(flow.blocks[block])
        following = flow.following[block]
        if len(following) == 1:
            chosen = following[0]
        else:
            jumps = scalars.jumps(flow.blocks[block][-1])
            if jumps is None and not all(target in loop.blocks for target in following):
                return None
            chosen = following[1 if jumps else 0]
        if chosen not in loop.blocks:
            return count
        block = chosen
    return None
