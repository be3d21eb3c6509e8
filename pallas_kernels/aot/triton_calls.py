"""The calls of Triton kernels in XLA's optimised module: which arrays, and how many programs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pallas_kernels.aot.hlo import Instruction, array_bytes, parse_module

TARGET = "__gpu$xla.gpu.triton"
_NUMBER = r"\b{} = (\d+) : i32"


@dataclass(frozen=True)
class TritonCall:
    """operands: bytes of each array it reads, by its place among the kernel's arguments; shapes:
    how XLA writes them. result_bytes: of all that it writes."""

    name: str
    grid: tuple[int, int, int]
    warps: int
    stages: int
    operands: Mapping[int, int]
    result_bytes: int
    shapes: tuple[str, ...]


def triton_calls(hlo: str) -> list[TritonCall]:
    """Every call of an optimised module, in order, those of a loop's body once."""
    return [
        _call(instruction)
        for instruction, _ in parse_module(hlo).executed()
        if f'custom_call_target="{TARGET}"' in instruction.text
    ]


def _call(instruction: Instruction) -> TritonCall:
    text, operands = instruction.text, instruction.operand_arrays

    def number(name: str) -> int:
        return int(re.findall(_NUMBER.format(name), text)[-1])

    return TritonCall(
        re.findall(r'\bname = "([^"]*)"', text)[-1],
        (number("grid_x"), number("grid_y"), number("grid_z")),
        number("num_warps"),
        number("num_stages"),
        {place: array_bytes(*array) for place, array in enumerate(operands)},
        sum(array_bytes(*array) for array in instruction.arrays),
        tuple(f"{dtype}{list(shape)}" for dtype, shape in operands),
    )
