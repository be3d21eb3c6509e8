"""What the devices of a compiled program tell each other."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_tools.aot.hlo import Instruction, array_bytes, parse_module

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_WITH_OPERANDS = ("all-gather-start", "all-to-all-start", "collective-permute-start")
"""Their results hold the operands too, before what comes out."""


@dataclass(frozen=True)
class Collective:
    """One array that comes out of one. times: how often it runs in a loop; 0: only data say."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    times: int

    @property
    def nbytes(self) -> int:
        """On each device."""
        return array_bytes(self.dtype, self.shape)


def collective_kind(opcode: str) -> str | None:
    """Which collective an operation is or begins."""
    kind = opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else None


def collectives(hlo: str) -> list[Collective]:
    """Every collective of an optimised module, in order; a combined one counts for each array."""
    return [
        Collective(kind, dtype, shape, times)
        for instruction, times in parse_module(hlo).executed()
        if (kind := collective_kind(instruction.opcode))
        for dtype, shape in _results(instruction)
    ]


def _results(instruction: Instruction) -> Iterator[tuple[str, tuple[int, ...]]]:
    arrays = instruction.arrays
    yield from arrays[len(arrays) // 2 :] if instruction.opcode in _WITH_OPERANDS else arrays
