"""Facts of a compiled kernel and its launch, as numbers without code or IR."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

FEWEST_READINGS = 8
"""An array that all programs together read so often stays in a cache: rows, tables, row scales."""
SMALL = 1 << 16
"""Bytes of the largest array that is in a cache after it was read once."""


@dataclass(frozen=True)
class Chain:
    """Time of one wave alone: max(busy, clocks + latencies * latency), in clocks.

    busy: time with memory of zero latency. latencies: full load latencies that the wave waits for;
    1 if the next step's loads are issued before the wait for this step's.
    """

    busy: float
    clocks: float
    latencies: float


@dataclass(frozen=True)
class Load:
    """Loads of one width from one array. width: bytes a lane. nbytes: of a wave, all together."""

    array: int
    width: int
    nbytes: int
    to_lds: bool = False


@dataclass(frozen=True)
class Work:
    """Work of one wave in some code. matrix, vector, idle: clocks of its SIMD's matrix unit, vector
    unit and `s_nop`; lds, stored: bytes."""

    loads: tuple[Load, ...]
    chain: Chain
    matrix: int = 0
    vector: int = 0
    idle: int = 0
    lds: int = 0
    stored: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Matrix instructions by multiplied type."""


NOTHING = Work((), Chain(0.0, 0.0, 0.0))
"""Work of no code."""


@dataclass(frozen=True)
class LoopFacts:
    """A loop. trips: number of iterations if the code determines it."""

    work: Work
    trips: int | None


@dataclass(frozen=True)
class KernelFacts:
    """A kernel and its launch.

    arrays: bytes of the arrays read, by argument index; written: bytes of the results. outside:
    code before the first and after the last loop. registers: vector registers a lane, accumulation
    registers included. lds: bytes of a workgroup.
    """

    name: str
    arch: str
    grid: tuple[int, int, int]
    warps: int
    stages: int
    registers: int
    lds: int
    arrays: Mapping[int, int]
    written: int
    loops: tuple[LoopFacts, ...]
    outside: Work

    @property
    def main(self) -> Work:
        """The loop that loads most, or all code if there is no loop."""
        loops = (loop.work for loop in self.loops)
        return max(
            loops, key=lambda work: sum(load.nbytes for load in work.loads), default=self.outside
        )

    @property
    def programs(self) -> int:
        """Number of launched workgroups."""
        return prod(self.grid)

    def anchor(self, loads: Sequence[Load]) -> int | None:
        """Return the largest array that is read; each of its bytes is read about once."""
        known = [load.array for load in loads if load.array in self.arrays]
        return max(known, key=lambda array: self.arrays[array], default=None)

    def trips(self, loop: LoopFacts, programs: float, touched: float = 1.0) -> float:
        """Return the loop's iterations a program; `touched` is the fraction of arrays read."""
        if loop.trips is not None:
            return float(loop.trips)
        anchor = self.anchor(loop.work.loads)
        if anchor is None:
            return 1.0
        read = sum(x.nbytes for x in loop.work.loads if x.array == anchor) * self.warps
        return max(1.0, touched * self.arrays[anchor] / (programs * read))

    def cached(self, load: Load, trips: float) -> bool:
        """Return whether an array that is loaded `trips` times in each program is in a cache."""
        nbytes = self.arrays.get(load.array, 0)
        read = load.nbytes * self.warps * trips * self.programs
        return nbytes < SMALL or read > FEWEST_READINGS * nbytes
