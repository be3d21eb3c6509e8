"""XLA's optimised module as data: what runs, in the order it is scheduled."""

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
"""Operations that run other computations as they are; what fusions call is one kernel."""


_BITS = {"pred": 8}


def array_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Of an array, by XLA's name of its dtype."""
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
        """The same of what a custom call reads."""
        found = _LAYOUTS.search(self.text)
        return _arrays(found[1]) if found else []

    @property
    def operands(self) -> list[str]:
        """Names of the instructions whose results it takes."""
        given = self.text.partition(f" {self.opcode}(")[2].partition(")")[0]
        return re.findall(r"%([\w.\-]+)", given)

    @property
    def op_name(self) -> str:
        """The JAX operation it comes from, with the named scopes around it."""
        found = _OP_NAME.search(self.text)
        return found[1] if found else ""

    @property
    def called(self) -> list[str]:
        """The computations that it runs."""
        if self.opcode not in _CALLED:
            return []
        found = re.findall(rf"\b(?:{_CALLED[self.opcode]})=(\{{[^}}]*\}}|%?[\w.\-]+)", self.text)
        return [name for group in found for name in re.findall(r"[\w.\-]+", group)]

    @property
    def repetitions(self) -> int:
        """How often it runs what it calls; 0 where only the data say."""
        if self.opcode == "call" or self.opcode == "async-start":
            return 1
        found = _TRIP_COUNT.search(self.text)
        return int(found[1]) if found else 0


@dataclass(frozen=True)
class Module:
    """computations: by name; entry: the one that runs."""

    computations: dict[str, list[Instruction]]
    entry: str

    def executed(self, computation: str = "", times: int = 1) -> Iterator[tuple[Instruction, int]]:
        """Every instruction that is executed, with how often; 0: only the data say."""
        for instruction in self.computations[computation or self.entry]:
            yield instruction, times
            for called in instruction.called:
                yield from self.executed(called, times * instruction.repetitions)


def _arrays(types: str) -> list[tuple[str, tuple[int, ...]]]:
    found = _ARRAY.findall(types)
    return [(dtype, tuple(int(n) for n in size.split(",") if n)) for dtype, size in found]


def parse_module(text: str) -> Module:
    """Reads what `Compiled.as_text()` gives. Raises ValueError where there is no entry."""
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
