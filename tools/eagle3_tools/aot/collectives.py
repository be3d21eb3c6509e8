"""Collective operations of a compiled program."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_tools.aot.hlo import Instruction, array_bytes, parse_module

COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_WITH_OPERANDS = ("all-gather-start", "all-to-all-start", "collective-permute-start")
"""Collectives whose results list the operands before the outputs."""


@dataclass(frozen=True)
class Collective:
    """One output array of a collective. times: executions in a loop; 0 if data-dependent."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    times: int

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes on each device."""
        return array_bytes(self.dtype, self.shape)


def collective_kind(opcode: str) -> str | None:
    """Return the collective that an operation is or begins, or None."""
    kind = opcode.removesuffix("-start")
    return kind if kind in COLLECTIVES else None


def collectives(hlo: str) -> list[Collective]:
    """Return every collective of an optimised module in order, combined ones once per array."""
    return [
        Collective(kind, dtype, shape, times)
        for instruction, times in parse_module(hlo).executed()
        if (kind := collective_kind(instruction.opcode))
        for dtype, shape in _results(instruction)
    ]


def _results(instruction: Instruction) -> Iterator[tuple[str, tuple[int, ...]]]:
    arrays = instruction.arrays
    yield from arrays[len(arrays) // 2 :] if instruction.opcode in _WITH_OPERANDS else arrays
