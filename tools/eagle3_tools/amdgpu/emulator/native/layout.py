"""Basic blocks of a kernel, in the order of the C form's counters."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eagle3_tools.amdgpu.emulator.waits import following
from eagle3_tools.aot.amd.decode import Instruction, Kind
from eagle3_tools.aot.amd.machine_code import Kernel

_MOST_REGISTERS = 512


@dataclass(frozen=True)
class Layout:
    """The instructions that can be reached, by address and in its order.

    A wave begins at one of `entries`. `leaders` are the addresses at which blocks begin.
    """

    entries: tuple[int, ...]
    reached: Mapping[int, Instruction]
    leaders: tuple[int, ...]

    @classmethod
    def of(cls, kernel: Kernel, entries: Sequence[int] = ()) -> "Layout":
        """Find what can be reached from a kernel's entry, or from others."""
        entries = tuple(entries) or (kernel.entry,)
        found, to_do = dict[int, Instruction](), list(entries)
        while to_do:
            pc = to_do.pop()
            if pc in kernel.code and pc not in found:
                found[pc] = kernel.code[pc]
                to_do += following(found[pc])
        leaders = set(entries)
        for i in found.values():
            if i.name == "s_barrier" or following(i) != [i.pc + i.size]:
                leaders |= {i.pc + i.size, *following(i)}
        return cls(entries, dict(sorted(found.items())), tuple(sorted(leaders & set(found))))

    @property
    def blocks(self) -> list[Counter[str]]:
        """Count the instructions of each block by name."""
        blocks: list[Counter[str]] = []
        for pc, i in self.reached.items():
            if pc in self.leaders:
                blocks.append(Counter())
            blocks[-1][i.name] += 1
        return blocks

    @property
    def registers(self) -> int:
        """Vector registers that a wave needs; a matrix has more than its operand says."""
        used = (
            register
            for i in self.reached.values()
            for operand in i.operands.values()
            if operand.kind is Kind.VECTOR
            for register in operand.registers
        )
        return min(_MOST_REGISTERS, max(used, default=0) + 33)
