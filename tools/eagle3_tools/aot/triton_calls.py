"""Calls of Triton kernels in XLA's optimised module: operands and grid."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eagle3_tools.aot.hlo import Instruction, array_bytes, parse_module

TARGET = "__gpu$xla.gpu.triton"
_NUMBER = r"\b{} = (\d+) : i32"


@dataclass(frozen=True)
class TritonCall:
    """One call of a Triton kernel. compiled: the kernel's name in the code, where XLA numbers
    duplicates. operands: bytes of each array read, by argument index; shapes: as XLA writes them.
    sources: the program argument of each operand, as JAX names it (`a[1].values`), or "" if the
    program computed it. result_bytes: of all results. text: source and launch parameters."""

    name: str
    compiled: str
    grid: tuple[int, int, int]
    warps: int
    stages: int
    operands: Mapping[int, int]
    result_bytes: int
    shapes: tuple[str, ...]
    text: str = field(repr=False)
    sources: tuple[str, ...] = ()

    def source(self, place: int) -> str | None:
        """Return the program argument of an operand, or None if there is no such operand."""
        return self.sources[place] if 0 <= place < len(self.sources) else None

    def largest(self, places: Iterable[int]) -> int:
        """Return the largest of these operands, -1 if there is none."""
        return max(places, key=lambda place: self.operands.get(place, 0), default=-1)

    def shown(self, place: int) -> str:
        """Return an operand's name for reports."""
        if self.source(place) is None:
            return "an array that its code does not tell"
        return f"{self.sources[place]}: {self.shapes[place]}"


def triton_calls(hlo: str) -> list[TritonCall]:
    """Return every call of an optimised module in order, those of a loop's body once."""
    instructions = [instruction for instruction, _ in parse_module(hlo).executed()]
    found = [one for one in instructions if f'custom_call_target="{TARGET}"' in one.text]
    compiled = _compiled_names(dict.fromkeys(map(_text, found)))
    by_name = {one.name: one for one in instructions}
    return [_call(one, compiled[_text(one)], by_name) for one in found]


def _source(name: str, by_name: Mapping[str, Instruction]) -> str:
    """Return the program argument that an instruction's result is, or ""."""
    one = by_name[name]
    if one.opcode == "bitcast":
        return _source(one.operands[0], by_name)
    return one.op_name if one.opcode == "parameter" else ""


def _text(call: Instruction) -> str:
    return call.text[call.text.index("backend_config=") :]


def _compiled_names(kernels: Iterable[str]) -> dict[str, str]:
    """Map kernel sources to compiled names. XLA compiles in call order; the second k is k__1."""
    count: Counter[str] = Counter()
    names: dict[str, str] = {}
    for text in kernels:
        name = _name(text)
        names[text] = f"{name}__{count[name]}" if count[name] else name
        count[name] += 1
    return names


def _name(text: str) -> str:
    return re.findall(r'\bname = "([^"]*)"', text)[-1]


def _call(
    instruction: Instruction, compiled: str, by_name: Mapping[str, Instruction]
) -> TritonCall:
    text, operands = instruction.text, instruction.operand_arrays

    def number(name: str) -> int:
        return int(re.findall(_NUMBER.format(name), text)[-1])

    return TritonCall(
        _name(text),
        compiled,
        (number("grid_x"), number("grid_y"), number("grid_z")),
        number("num_warps"),
        number("num_stages"),
        {place: array_bytes(*array) for place, array in enumerate(operands)},
        sum(array_bytes(*array) for array in instruction.arrays),
        tuple(f"{dtype}{list(shape)}" for dtype, shape in operands),
        _text(instruction),
        tuple(_source(name, by_name) for name in instruction.operands),
    )
