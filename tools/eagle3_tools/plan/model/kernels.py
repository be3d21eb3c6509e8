"""Time of one kernel under the two limits of a plan."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from eagle3_tools.plan.data.fixed_costs import sum_start_seconds
from eagle3_tools.plan.data.gpus import Gpu
from eagle3_tools.plan.data.tuned import KernelKind

Bound = Literal["datasheet", "tuned"]
"""datasheet: bytes and FLOP at the datasheet's rates, free launches. tuned: the best published
kernels or, for GPUs without published figures, our own by the model, back to back, with their fixed
costs; no host."""
BOUNDS: tuple[Bound, ...] = get_args(Bound)


@dataclass(frozen=True)
class Kernel:
    """Launches of one kind on one device: `times` of them, each with these bytes and FLOP.

    part: name of the round's part. activations: type that the matrix units multiply.
    """

    part: str
    kind: KernelKind
    nbytes: float
    flop: float = 0.0
    activations: str = "none"
    times: int = 1

    def seconds(self, gpu: Gpu, bound: Bound) -> float:
        peak = gpu.rate(self.activations)
        if bound == "datasheet":
            small = self.kind == "small"
            each = 0.0 if small else max(self.nbytes / gpu.bandwidth, self.flop / peak)
        else:
            of = gpu.tuned[self.kind]
            reading = self.nbytes / (of.of_bandwidth * gpu.bandwidth)
            each = of.seconds + max(reading, self.flop / (of.of_peak * peak))
        return self.times * each


@dataclass(frozen=True)
class AllReduce:
    """`times` sums of `nbytes` bytes over all devices."""

    nbytes: float
    devices: int
    times: int
    part: str = "all-reduce"

    def seconds(self, gpu: Gpu, bound: Bound) -> float:
        if self.devices == 1:
            return 0.0
        links = min((self.devices - 1) * gpu.peer_link, gpu.all_links)
        wire = 2 * (self.devices - 1) / self.devices * self.nbytes / links
        if bound == "datasheet":
            return self.times * wire
        start = sum_start_seconds(self.nbytes, self.devices, gpu)
        return self.times * (start + wire / gpu.all_reduce.of_bandwidth)


@dataclass(frozen=True)
class Exchange:
    """`times` exchanges in which each of `devices` devices sends `nbytes` to every other one, the
    same data (all-gather) or different data (all-to-all)."""

    nbytes: float
    devices: int
    times: int
    part: str

    def seconds(self, gpu: Gpu, bound: Bound) -> float:
        links = min((self.devices - 1) * gpu.peer_link, gpu.all_links)
        wire = (self.devices - 1) * self.nbytes / links
        if bound == "datasheet":
            return self.times * wire
        return self.times * (gpu.all_reduce.seconds + wire / gpu.all_reduce.of_bandwidth)


Work = Kernel | AllReduce | Exchange


def seconds(work: Iterable[Work], gpu: Gpu, bound: Bound) -> float:
    return sum(seconds_of_parts(work, gpu, bound).values())


def seconds_of_parts(work: Iterable[Work], gpu: Gpu, bound: Bound) -> dict[str, float]:
    parts: dict[str, float] = {}
    for one in work:
        parts[one.part] = parts.get(one.part, 0.0) + one.seconds(gpu, bound)
    return parts
