"""Timing model of one wave alone on its SIMD, instruction by instruction.

Loads of global memory arrive in order, `latency` after they were issued, or a third of that if a
cache has the data. Matrix instructions use the matrix unit one after another; all others take their
issue slots. Banks, caches and other waves are not modelled.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from eagle3_tools.aot.amd.decode import Instruction, Kind, Register
from eagle3_tools.aot.amd.operations import (
    issue_clocks,
    matrix_clocks,
    memory_width,
    scalar_width,
    wait_limits,
)
from eagle3_tools.kernel_model.facts import Chain

CACHED = 1 / 3
"""A cache's latency relative to memory's."""
LDS_CLOCKS = 128
"""Clocks of an LDS access without bank conflicts."""
SCALAR_CLOCKS = 500
"""Clocks of a scalar load that misses its cache, as a kernel's first ones do."""
_NEAR, _FAR = 20_000.0, 40_000.0
"""Latencies in clocks that dominate everything else."""
_WARM, _MEASURED = 4, 4
_WRITTEN = ("vdst", "sdst", "sdata")

Code = tuple[Instruction, ...]


@dataclass
class Wave:
    """State of the wave. cached: whether a load, by address, finds its data in a cache. clock: when
    the next instruction may begin. ready: when a register can be read."""

    arch: str
    cached: Mapping[int, bool]
    latency: float
    clock: float = 0.0
    matrix_free: float = 0.0
    ready: dict[Register, float] = field(default_factory=dict)
    vector: list[float] = field(default_factory=list)
    scalar: list[float] = field(default_factory=list)

    def step(self, i: Instruction) -> None:
        """Execute one instruction."""
        limits = wait_limits(i)
        if limits is not None:
            self.vector = self._wait(self.vector, limits[0])
            self.scalar = self._wait(self.scalar, limits[1])
        elif memory_width(i):
            latency = self.latency * (CACHED if self.cached.get(i.pc) else 1)
            self.vector.append(max([self.clock + latency, *self.vector[-1:]]))
        elif i.name.startswith("ds_"):
            self.scalar.append(self.clock + LDS_CLOCKS)
        elif scalar_width(i):
            self.scalar.append(self.clock + SCALAR_CLOCKS)
        elif clocks := matrix_clocks(i, self.arch):
            self._multiply(i, clocks)
        else:
            self._until_ready(i)
        self.clock += issue_clocks(i)

    def _wait(self, under_way: list[float], most: int) -> list[float]:
        if len(under_way) > most:
            done = len(under_way) - most
            self.clock = max(self.clock, under_way[done - 1])
        return under_way[-most:] if most else []

    def _multiply(self, i: Instruction, clocks: int) -> None:
        self._until_ready(i)
        self.clock = max(self.clock, self.matrix_free)
        self.matrix_free = self.clock + clocks
        for register in _registers(i, written=True):
            self.ready[register] = self.matrix_free

    def _until_ready(self, i: Instruction) -> None:
        for register in _registers(i, written=False):
            self.clock = max(self.clock, self.ready.pop(register, 0.0))


def of_loop(body: Code, arch: str, cached: Mapping[int, bool]) -> Chain:
    """Model one trip of a loop in steady state."""

    def trip(latency: float) -> float:
        wave = Wave(arch, cached, latency)
        begin = _run(wave, body * _WARM)
        return (_run(wave, body * _MEASURED) - begin) / _MEASURED

    return _chain(trip)


def of_code(code: Code, arch: str, cached: Mapping[int, bool]) -> Chain:
    """Model code that runs once."""
    return _chain(lambda latency: _run(Wave(arch, cached, latency), code))


def _chain(clocks: Callable[[float], float]) -> Chain:
    near, far = clocks(_NEAR), clocks(_FAR)
    slope = (far - near) / (_FAR - _NEAR)
    return Chain(clocks(0.0), near - slope * _NEAR, slope)


def _run(wave: Wave, code: Iterable[Instruction]) -> float:
    for i in code:
        wave.step(i)
    return wave.clock


def _registers(i: Instruction, *, written: bool) -> Iterator[Register]:
    for name, operand in i.operands.items():
        if (name in _WRITTEN) == written and operand.kind is Kind.VECTOR:
            yield from operand.places
