"""Seconds of a round, kernel by kernel, with launches and sums over devices."""

from collections.abc import Mapping
from dataclasses import dataclass

from eagle3_tools.kernel_model.gpus import BY_ARCH, ModelGpu
from eagle3_tools.kernel_model.record import CaseFacts
from eagle3_tools.plan.data.fixed_costs import Running
from eagle3_tools.plan.data.gpus import GPUS, Gpu
from eagle3_tools.plan.kernels.round_launches import Launches, RoundOf

OF_LIBRARY = 0.75
"""Of HBM, that XLA's own products reach, as AITER's do (`eagle3_tools.plan.data.gpus`)."""
LIBRARY_LATENCIES = 2
"""That they wait for at their begin and end."""


@dataclass(frozen=True)
class PartTime:
    """Of one part of the round. seconds: of its kernels alone; floor: bytes at the datasheet's
    rate; kernels: how many are launched."""

    seconds: float = 0.0
    floor: float = 0.0
    kernels: int = 0

    @property
    def share(self) -> float:
        """Of the floor."""
        return self.floor / self.seconds if self.seconds else 0.0

    def __add__(self, other: "PartTime") -> "PartTime":
        return PartTime(
            self.seconds + other.seconds, self.floor + other.floor, self.kernels + other.kernels
        )


@dataclass(frozen=True)
class RoundTime:
    """parts: by name. launches: (seconds of a kernel, how many like it)."""

    of: RoundOf
    gpu: Gpu
    model: ModelGpu
    parts: Mapping[str, PartTime]
    launches: tuple[tuple[float, int], ...]

    @property
    def kernels(self) -> PartTime:
        """All of them."""
        return sum(self.parts.values(), PartTime())

    def sums(self, running: Running) -> float:
        """Seconds of all sums over devices."""
        return sum(
            times * running.sum_seconds(nbytes, self.of.devices, self.gpu)
            for times, nbytes in self.of.sums
        )

    def seconds(self, running: Running) -> float:
        """Of the round."""
        gap = self.model.graph_gap
        launched = sum(n * running.launch_seconds(each, gap) for each, n in self.launches)
        return launched + self.sums(running)


def round_time(of: RoundOf, gpu_name: str, cases: Mapping[str, CaseFacts]) -> RoundTime:
    """By these cases' facts. Raises KeyError, naming the case, where one is not recorded."""
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
    """Of each kernel of one call."""
    if not launch.case:
        return (LIBRARY_LATENCIES * gpu.latency + launch.nbytes / (OF_LIBRARY * gpu.hbm),)
    case = cases[launch.case]
    longer = 1 + launch.extra / case.floor
    return tuple(found.seconds * longer for found in case.predictions(gpu))
