"""Prediction of a launch's time, and of the limit that keeps it from its floor, from code facts.

Each limit is the time that a round of programs would take if nothing else took any:

    latency   (latencies waited for) x (latency of memory), and what is between them
    vector    instructions of all waves of a SIMD on its vector unit
    matrix    the same on its matrix unit
    LDS       bytes of all waves of a unit through its LDS
    caches    bytes that all programs load, also those that a cache has
    HBM       bytes through memory, each once, at the rate that streaming kernels reach

The round takes the fourth root of the sum of their fourth powers: the longest limit, and up to a
fifth more for each that is as long. Programs that do not fit on a unit at once run in later
`rounds`. Launched programs without work (experts that no token chose) take their dispatch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from eagle3_tools.kernel_model.facts import KernelFacts, Load, LoopFacts, Work
from eagle3_tools.kernel_model.gpus import ModelGpu

_POWER = 4
"""Exponent with which limits add up, a fit to the published kernels (docs/kernel_model.md)."""


@dataclass(frozen=True)
class Call:
    """Fraction of a call's large arrays that it reads (touched), and of its programs that have work
    (live); both are below 1 if some experts are not chosen."""

    touched: float = 1.0
    live: float = 1.0


@dataclass(frozen=True)
class Prediction:
    """Predicted time of a launch. seconds: from the first wave to the last store, without the
    launch. resident: programs on a unit at a time; rounds: of programs on the busiest unit; steps:
    loop iterations of a program; in_flight: bytes of memory in flight on a unit; parts: seconds of
    the first round by limit."""

    seconds: float
    floor_seconds: float
    limit: str
    programs: float
    resident: int
    rounds: float
    steps: float
    in_flight: float
    parts: Mapping[str, float]

    @property
    def share(self) -> float:
        """Fraction of the floor: bytes through memory, each once, at the datasheet's rate."""
        return self.floor_seconds / self.seconds


def predict(facts: KernelFacts, gpu: ModelGpu, call: Call) -> Prediction:
    """Predict one launch on this GPU."""
    programs = max(1.0, facts.programs * call.live)
    most = resident_programs(facts, gpu)
    there = ceil(programs / gpu.units)
    time = _ProgramTime(facts, gpu, call, programs)
    together = min(most, there)
    first = min(programs, float(together * gpu.units))
    working = sum(time.seconds(*one) for one in _rounds(programs, gpu.units, together))
    return Prediction(
        working + max(0.0, facts.programs - programs) / gpu.dispatch,
        time.memory_bytes / gpu.hbm,
        time.limit(together, first),
        programs,
        together,
        there / together,
        time.steps,
        time.in_flight(together),
        time.parts(together, first),
    )


def _rounds(programs: float, units: int, together: int) -> Iterator[tuple[int, float]]:
    """Yield the programs on the busiest unit, and on all units, for each round."""
    while programs > 0:
        now = min(programs, float(together * units))
        yield ceil(now / units), now
        programs -= now


def resident_programs(facts: KernelFacts, gpu: ModelGpu) -> int:
    """Return the programs that a unit holds at a time, by registers, waves and LDS."""
    given = max(gpu.granule, -(-facts.registers // gpu.granule) * gpu.granule)
    waves = min(gpu.waves, gpu.registers // given) * gpu.simds
    by_lds = gpu.lds // facts.lds if facts.lds else waves
    return max(1, min(waves // facts.warps, by_lds))


class _ProgramTime:
    """Clocks of a program by limit, given the number of programs on a unit."""

    def __init__(self, facts: KernelFacts, gpu: ModelGpu, call: Call, programs: float):
        self.facts, self.gpu, self.call, self.programs = facts, gpu, call, programs
        self.loops = [(loop, self._trips(loop)) for loop in facts.loops]
        self.steps = float(sum(trips for _, trips in self.loops))

    def _trips(self, loop: LoopFacts) -> float:
        """Return the loop's iterations in an average program. Of loops over different arrays, a
        program has one. Of loops over one array with data-dependent lengths, the one without masks
        reads it, which has the fewest vector instructions a byte; the others run once."""
        trips = self.facts.trips(loop, self.programs, self.call.touched)
        if loop.trips is not None:
            return trips * self._share(loop)
        anchor = self._anchor(loop)
        alike = [
            one
            for one in self.facts.loops
            if anchor is not None and one.trips is None and self._anchor(one) == anchor
        ]
        reading = min(alike, key=lambda one: self._vector_a_byte(one, anchor), default=loop)
        return trips if loop is reading else 1.0

    @staticmethod
    def _vector_a_byte(loop: LoopFacts, array: int | None) -> float:
        return loop.work.vector / sum(x.nbytes for x in loop.work.loads if x.array == array)

    def _share(self, loop: LoopFacts) -> float:
        """Return the fraction of programs that run this loop."""
        owned = [self._own_bytes(one) for one in self.facts.loops]
        mine = self._own_bytes(loop)
        return mine / sum(owned) if mine and sum(map(bool, owned)) > 1 else 1.0

    def _own_bytes(self, loop: LoopFacts) -> int:
        """Return the bytes of the largest array that no other loop reads, 0 if there is none."""
        others = {x.array for one in self.facts.loops if one is not loop for x in one.work.loads}
        own = {x.array for x in loop.work.loads} - others
        return max((self.facts.arrays.get(array, 0) for array in own), default=0)

    def _anchor(self, loop: LoopFacts) -> int | None:
        """Return the array that a loop reads from memory, None if caches hold all of them."""
        trips = self.facts.trips(loop, self.programs, self.call.touched)
        return self.facts.anchor(tuple(self._far_loads(loop.work, trips)))

    def seconds(self, resident: int, programs: float) -> float:
        parts = self.parts(resident, programs).values()
        return sum(part**_POWER for part in parts) ** (1 / _POWER)

    def limit(self, resident: int, programs: float) -> str:
        parts = self.parts(resident, programs)
        name = max(parts, key=lambda part: parts[part])
        outside = self._latency(self.facts.outside) / self.gpu.hz
        return "start" if name == "latency" and outside > parts[name] / 2 else name

    def parts(self, resident: int, programs: float) -> dict[str, float]:
        """Return the seconds of each limit for a round of `programs` programs."""
        gpu = self.gpu
        waves = resident * self.facts.warps
        of_simd = max(1.0, waves / gpu.simds)
        clocks = {
            "latency": self._sum(self._latency),
            "vector": of_simd * self._sum(lambda work: work.vector),
            "matrix": of_simd * self._sum(lambda work: work.matrix),
            "LDS": waves * self._sum(lambda work: work.lds) / gpu.lds_rate,
        }
        found = {name: value / gpu.hz for name, value in clocks.items()}
        found["caches"] = self.loaded_bytes * programs / gpu.caches
        memory = self.memory_bytes * programs / self.programs
        return {**found, "HBM": memory / (gpu.hbm * gpu.reached)}

    def in_flight(self, resident: int) -> float:
        """Return the bytes in flight in the loop that reads most, while it waits for loads."""
        reading = [(self._far(loop.work, trips), loop.work.chain) for loop, trips in self.loops]
        reading = reading or [(self._far(self.facts.outside, 1.0), self.facts.outside.chain)]
        nbytes, chain = max(reading, key=lambda found: found[0])
        return resident * self.facts.warps * nbytes / max(chain.latencies, 0.25)

    @property
    def works(self) -> list[tuple[Work, float]]:
        """The code of a program and how often it runs."""
        return [(loop.work, trips) for loop, trips in self.loops] + [(self.facts.outside, 1.0)]

    @property
    def loaded_bytes(self) -> float:
        """Bytes that one program loads; no more than an array has, where masks leave lanes out."""
        loaded: dict[int, float] = {}
        for work, trips in self.works:
            for load in work.loads:
                nbytes = load.nbytes * trips * self.facts.warps
                loaded[load.array] = loaded.get(load.array, 0.0) + nbytes
        return sum(min(n, self.facts.arrays.get(array) or n) for array, n in loaded.items())

    @property
    def memory_bytes(self) -> float:
        """Bytes of all programs through memory, each part of an array once."""
        works = self.works
        read = sum(self._far(work, trips) * trips for work, trips in works)
        stored = sum(work.stored * trips for work, trips in works)
        arrays = {load.array for work, trips in works for load in self._far_loads(work, trips)}
        whole = sum(self.facts.arrays.get(array, 0) for array in arrays) * self.call.touched
        waves = self.facts.warps * self.programs
        return min(read * waves, whole) + min(stored * waves, self.facts.written)

    def _far(self, work: Work, trips: float) -> float:
        return float(sum(load.nbytes for load in self._far_loads(work, trips)))

    def _far_loads(self, work: Work, trips: float) -> Iterator[Load]:
        return (load for load in work.loads if not self.facts.cached(load, trips))

    def _latency(self, work: Work) -> float:
        chain = work.chain
        return max(chain.busy, chain.clocks + chain.latencies * self.gpu.latency_clocks)

    def _sum(self, of: Callable[[Work], float]) -> float:
        return float(sum(trips * of(work) for work, trips in self.works))
