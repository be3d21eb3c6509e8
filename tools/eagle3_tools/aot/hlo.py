"""Parser of XLA's optimised module: instructions in scheduled order."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = "
    r"(?P<type>\((?:[^()]|\([^()]*\))*\)|\S+) (?P<opcode>[\w\-]+)\("
)
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_LAYOUTS = re.compile(r"operand_layout_constraints=\{((?:[^{}]|\{[^{}]*\})*)\}")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLED = {
    "while": "body",
    "call": "to_apply",
    "async-start": "calls",
    "conditional": "branch_computations|true_computation|false_computation",
}
"""Operations that run other computations as they are; a fusion is a kernel with its computation."""


_BITS = {"pred": 8}


def array_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size in bytes of an array, given XLA's name of its dtype."""
    digits = "".join(filter(str.isdigit, dtype.partition("e")[0]))
    return prod(shape) * (_BITS.get(dtype) or int(digits)) // 8


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. type: its result as XLA writes it; text: the whole line."""

    name: str
    type: str
    opcode: str
    text: str

    @property
    def arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """(dtype, shape) of the result, or of each of its parts."""
        return _arrays(self.type)

    @property
    def operand_arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """(dtype, shape) of each operand of a custom call."""
        found = _LAYOUTS.search(self.text)
        return _arrays(found[1]) if found else []

    @property
    def operands(self) -> list[str]:
        """Names of the instructions whose results are operands."""
        given = self.text.partition(f" {self.opcode}(")[2].partition(")")[0]
        return re.findall(r"%([\w.\-]+)", given)

    @property
    def op_name(self) -> str:
        """The originating JAX operation with its named scopes."""
        found = _OP_NAME.search(self.text)
        return found[1] if found else ""

    @property
    def called(self) -> list[str]:
        """Names of the computations that the instruction runs."""
        if self.opcode not in _CALLED:
            return []
        found = re.findall(rf"\b(?:{_CALLED[self.opcode]})=(\{{[^}}]*\}}|%?[\w.\-]+)", self.text)
        return [name for group in found for name in re.findall(r"[\w.\-]+", group)]

    @property
    def repetitions(self) -> int:
        """Number of times that the called computations run; 0 if it depends on data."""
        if self.opcode == "call" or self.opcode == "async-start":
            return 1
        found = _TRIP_COUNT.search(self.text)
        return int(found[1]) if found else 0


@dataclass(frozen=True)
class Module:
    """Computations of a module by name; `entry` is the one that runs."""

    computations: dict[str, list[Instruction]]
    entry: str

    def executed(self, computation: str = "", times: int = 1) -> Iterator[tuple[Instruction, int]]:
        """Yield every executed instruction with its count; 0 if it depends on data."""
        for instruction in self.computations[computation or self.entry]:
            yield instruction, times
            for called in instruction.called:
                yield from self.executed(called, times * instruction.repetitions)


def _arrays(types: str) -> list[tuple[str, tuple[int, ...]]]:
    found = _ARRAY.findall(types)
    return [(dtype, tuple(int(n) for n in size.split(",") if n)) for dtype, size in found]


def parse_module(text: str) -> Module:
    """Parse the output of `Compiled.as_text()`. Raises ValueError if it has no entry."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if line.startswith("}"):
            current = None
        elif current is None and (header := _COMPUTATION.match(line)):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current.append(Instruction(found["name"], found["type"], found["opcode"], line))
    if not entry:
        raise ValueError("this is no optimised HLO module: it has no ENTRY")
    return Module(computations, entry)
