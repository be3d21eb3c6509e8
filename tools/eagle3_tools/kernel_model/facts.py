"""What is known of a compiled kernel and its launch, as numbers: no code, no IR."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

FEWEST_READINGS = 8
"""An array that programs read so often in all stays in a cache: rows, tables, scales of rows."""
SMALL = 1 << 16
"""Bytes of an array that is in a cache after its first reading."""


@dataclass(frozen=True)
class Chain:
    """What one wave alone needs: max(busy, clocks + latencies * latency), in clocks.

    busy: if memory answered at once. latencies: how many whole latencies of a load it waits for;
    1 where the next step's loads are issued before this step's are waited for.
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
    """What one wave does in some code. matrix, vector, idle: clocks of its SIMD's matrix unit, its
    vector unit, and of `s_nop`; lds, stored: bytes; memory: accesses of global memory."""

    loads: tuple[Load, ...]
    chain: Chain
    matrix: int = 0
    vector: int = 0
    idle: int = 0
    lds: int = 0
    stored: int = 0
    memory: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Matrix instructions by what they multiply."""


@dataclass(frozen=True)
class LoopFacts:
    """trips: how often it runs where the code says so."""

    work: Work
    trips: int | None


@dataclass(frozen=True)
class KernelFacts:
    """A kernel and its launch. arrays: bytes of those it reads, by their place among its arguments;
    written: bytes of its results.

    outside: the code before the first loop and behind the last one. registers: vector registers a
    lane, accumulation registers included. lds: bytes of a workgroup.
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
        """The loop that loads most; of a kernel without a loop all of it."""
        loops = (loop.work for loop in self.loops)
        return max(
            loops, key=lambda work: sum(load.nbytes for load in work.loads), default=self.outside
        )

    @property
    def programs(self) -> int:
        """Launched workgroups."""
        return prod(self.grid)

    def anchor(self, loads: Sequence[Load]) -> int | None:
        """The largest array that is read, of which each byte is read about once."""
        known = [load.array for load in loads if load.array in self.arrays]
        return max(known, key=lambda array: self.arrays[array], default=None)

    def trips(self, loop: LoopFacts, programs: float, touched: float = 1.0) -> float:
        """How often the loop runs in each of so many programs, of arrays read to this share."""
        if loop.trips is not None:
            return float(loop.trips)
        anchor = self.anchor(loop.work.loads)
        if anchor is None:
            return 1.0
        read = sum(x.nbytes for x in loop.work.loads if x.array == anchor) * self.warps
        return max(1.0, touched * self.arrays[anchor] / (programs * read))

    def cached(self, load: Load, trips: float) -> bool:
        """Whether what a load reads that many times in each program is in a cache."""
        nbytes = self.arrays.get(load.array, 0)
        read = load.nbytes * self.warps * trips * self.programs
        return nbytes < SMALL or read > FEWEST_READINGS * nbytes
