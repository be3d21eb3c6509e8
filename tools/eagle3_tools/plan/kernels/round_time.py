"""Time of a round, kernel by kernel, with launches and sums over devices."""

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3_tools.kernel_model.gpus import BY_ARCH, ModelGpu
from eagle3_tools.kernel_model.record import CaseFacts
from eagle3_tools.plan.data.fixed_costs import launch_seconds
from eagle3_tools.plan.data.gpus import GPUS, Gpu
from eagle3_tools.plan.kernels.round_launches import Launches, RoundOf
from eagle3_tools.plan.model.kernels import AllReduce

OF_LIBRARY = 0.75
"""Fraction of HBM that XLA's own products reach, as AITER's do (`eagle3_tools.plan.data.gpus`)."""
LIBRARY_LATENCIES = 2
"""Latencies that these products wait for at their start and end."""


@dataclass(frozen=True)
class PartTime:
    """Time of one part of the round. seconds: of its kernels alone; floor: bytes at the datasheet's
    rate; kernels: number of launches."""

    seconds: float = 0.0
    floor: float = 0.0
    kernels: int = 0

    @property
    def share(self) -> float:
        return self.floor / self.seconds if self.seconds else 0.0

    def __add__(self, other: "PartTime") -> "PartTime":
        return PartTime(
            self.seconds + other.seconds, self.floor + other.floor, self.kernels + other.kernels
        )


@dataclass(frozen=True)
class RoundTime:
    """Time of a round. parts: by name. launches: (seconds of a kernel, number of such kernels)."""

    of: RoundOf
    gpu: Gpu
    model: ModelGpu
    parts: Mapping[str, PartTime]
    launches: tuple[tuple[float, int], ...]

    @property
    def kernels(self) -> PartTime:
        return sum(self.parts.values(), PartTime())

    @property
    def sums(self) -> float:
        """Seconds of all sums over devices."""
        sums = (AllReduce(nbytes, self.of.devices, times) for times, nbytes in self.of.sums)
        return sum(each.seconds(self.gpu, "tuned") for each in sums)

    def seconds(self, *, command_buffers: bool) -> float:
        """Return the time of the round, with the gaps between kernels and the sums."""
        return self.sums + sum(
            n * launch_seconds(each, self.model.graph_gap, command_buffers=command_buffers)
            for each, n in self.launches
        )


def round_time(of: RoundOf, gpu_name: str, cases: Mapping[str, CaseFacts]) -> RoundTime:
    """Compute the time from cases' facts. Raises KeyError, naming a case that is missing."""
    gpu = GPUS[gpu_name]
    model = BY_ARCH[gpu.arch]
    parts: dict[str, PartTime] = {}
    launches: list[tuple[float, int]] = []
    for launch in of.launches():
        each = _seconds(launch, model, cases)
        floor = launch.nbytes + launch.extra
        if launch.case:
            floor += cases[launch.case].floor
        found = PartTime(
            launch.times * sum(each), launch.times * floor / model.hbm, launch.times * len(each)
        )
        parts[launch.part] = parts.get(launch.part, PartTime()) + found
        launches += [(kernel, launch.times) for kernel in each]
    return RoundTime(of, gpu, model, parts, tuple(launches))


def _seconds(launch: Launches, gpu: ModelGpu, cases: Mapping[str, CaseFacts]) -> tuple[float, ...]:
    if not launch.case:
        return (LIBRARY_LATENCIES * gpu.latency + launch.nbytes / (OF_LIBRARY * gpu.hbm),)
    case = cases[launch.case]
    longer = 1 + launch.extra / case.floor
    return tuple(found.seconds * longer for found in case.predictions(gpu))
