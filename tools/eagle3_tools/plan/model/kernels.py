"""Seconds of one kernel under the two limits that a plan is held against."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from eagle3_tools.plan.data.gpus import Gpu
from eagle3_tools.plan.data.tuned import KernelKind

Bound = Literal["datasheet", "tuned"]
"""datasheet: bytes and FLOP at the rates of the datasheet, launches free. tuned: the best kernels
published so far or, for GPUs without such figures, our own by the model, back to back, with what
each costs besides; no host."""
BOUNDS: tuple[Bound, ...] = get_args(Bound)


@dataclass(frozen=True)
class Kernel:
    """Launches of one kind on one device: `times` of them, each of so many bytes and FLOP.

    part: what of the round it belongs to. activations: what the matrix units multiply.
    """

    part: str
    kind: KernelKind
    nbytes: float
    flop: float = 0.0
    activations: str = "none"
    times: int = 1

    def seconds(self, gpu: Gpu, bound: Bound) -> float:
        """All of its launches."""
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
    """`times` sums of so many bytes over all devices."""

    nbytes: float
    devices: int
    times: int
    part: str = "all-reduce"

    def seconds(self, gpu: Gpu, bound: Bound) -> float:
        """Each device sends and takes 2 (n - 1) / n of the bytes, over all links it has."""
        if self.devices == 1:
            return 0.0
        links = min((self.devices - 1) * gpu.peer_link, gpu.all_links)
        wire = 2 * (self.devices - 1) / self.devices * self.nbytes / links
        if bound == "datasheet":
            return self.times * wire
        return self.times * (gpu.all_reduce.seconds + wire / gpu.all_reduce.of_bandwidth)


@dataclass(frozen=True)
class Exchange:
    """`times` exchanges among `devices` neighbours: each sends so many bytes to every other one,
    the same to all (all-gather) or not (all-to-all)."""

    nbytes: float
    devices: int
    times: int
    part: str

    def seconds(self, gpu: Gpu, bound: Bound) -> float:
        """Starts as a sum over devices does, and reaches as much of the links."""
        links = min((self.devices - 1) * gpu.peer_link, gpu.all_links)
        wire = (self.devices - 1) * self.nbytes / links
        if bound == "datasheet":
            return self.times * wire
        return self.times * (gpu.all_reduce.seconds + wire / gpu.all_reduce.of_bandwidth)


Work = Kernel | AllReduce | Exchange


def seconds(work: Iterable[Work], gpu: Gpu, bound: Bound) -> float:
    """One after another."""
    return sum(seconds_of_parts(work, gpu, bound).values())


def seconds_of_parts(work: Iterable[Work], gpu: Gpu, bound: Bound) -> dict[str, float]:
    """The same by part."""
    parts: dict[str, float] = {}
    for one in work:
        parts[one.part] = parts.get(one.part, 0.0) + one.seconds(gpu, bound)
    return parts
