"""The record of a soak, and the faults that it shows."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

MEMORY_GROWTH = 0.05
SLOWDOWN = 2.0
"""Most that a percentile of the second half may be, times that of the first."""
Outcomes = defaultdict[str, Counter[str]]
"""Path and feature -> counts of outcomes."""
KINDS = ("hung up", "refused")
QUARTERS = 4


class Latency(NamedTuple):
    """When a streamed answer was complete, and seconds to its first and to its last line."""

    finished: float
    first: float
    last: float


@dataclass(frozen=True)
class Holdings:
    """Contents of an idle server. `pages` is a fraction; `processes` are those that it started."""

    memory_mib: float
    open_files: int
    threads: int
    processes: int
    tasks: float
    stored_responses: float
    stored_bytes: float
    running: float
    waiting: float
    pages: float

    def leaks_since(self, before: "Holdings") -> Iterable[str]:
        """Yield a line for each kind of thing that should be gone."""
        for name in ("stored_responses", "stored_bytes", "running", "waiting", "pages"):
            if value := getattr(self, name):
                yield f"{name}: expected 0, found {value:g}"
        for name in ("open_files", "threads", "processes", "tasks"):
            earlier, later = getattr(before, name), getattr(self, name)
            if later > earlier:
                yield f"{name}: {earlier:g} before, {later:g} after"


@dataclass(frozen=True)
class ServerRecord:
    """A server before and after the measured part, and its resident memory in MiB meanwhile.

    `tiers` has the usage of host memory and disk at the end and the tokens found there; none may be
    0.
    """

    name: str
    before: Holdings
    after: Holdings
    memory_mib: list[float]
    preemptions: int
    tiers: dict[str, float]
    exit_status: int

    @property
    def memory_growth(self) -> float:
        """The most memory of the second half over that of the first, less 1."""
        middle = len(self.memory_mib) // 2
        return max(self.memory_mib[middle:]) / max(self.memory_mib[: middle + 1]) - 1

    @property
    def faults(self) -> list[str]:
        found = list(self.after.leaks_since(self.before))
        if self.memory_growth > MEMORY_GROWTH:
            found.append(f"memory grew by {100 * self.memory_growth:.1f}%")
        found += [f"{name}: none" for name, value in self.tiers.items() if not value]
        if self.exit_status:
            found.append(f"exit status: expected 0, found {self.exit_status}")
        return [f"{self.name}: {fault}" for fault in found]


@dataclass(frozen=True)
class SoakRecord:
    """Outcomes by path and feature, signals by kind, and both servers.

    `latencies` has percentiles in seconds for each quarter of the measured part.
    """

    seconds: float
    concurrency: int
    outcomes: dict[str, dict[str, int]]
    signals: dict[str, int]
    latencies: dict[str, list[float]]
    servers: list[ServerRecord]
    faults: list[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "faults", list(self._faults()))

    @property
    def holds(self) -> bool:
        """True if nothing leaked, failed or became slower, and every kind of traffic occurred."""
        return not self.faults

    def _faults(self) -> Iterable[str]:
        for row, counts in self.outcomes.items():
            yield from (f"{row}: {kind}" for kind in counts if kind.startswith("failed"))
            if not counts.get("finished"):
                yield f"{row}: none finished"
        counts = total(self.outcomes)
        yield from (f"none {kind}" for kind in KINDS if not counts.get(kind))
        if not self.latencies:
            yield "latencies: a quarter of the run has no streamed answer; use a larger --seconds"
        for name, (first, second, third, fourth) in self.latencies.items():
            earlier, later = max(first, second), max(third, fourth)
            if later > SLOWDOWN * earlier:
                yield f"{name}: {earlier:.2f} s in the first half, {later:.2f} s in the second"
        for server in self.servers:
            yield from server.faults


def total(counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the counts of each outcome over all rows."""
    summed = sum(map(Counter, counts.values()), Counter[str]())
    return dict(sorted(summed.items()))


def percentiles(latencies: Sequence[Latency]) -> dict[str, list[float]]:
    """Return median and 95th percentile of first and last lines, by quarter of the time.

    The result is empty if a quarter has no answer.
    """
    if not latencies:
        return {}
    times = np.array(sorted(latencies))
    edges = np.linspace(times[0, 0], times[-1, 0], QUARTERS + 1)[1:-1]
    quarters = np.split(times, np.searchsorted(times[:, 0], edges))
    if not all(map(len, quarters)):
        return {}
    return {
        f"{name} {percentile}%": [
            round(float(np.percentile(quarter[:, column], percentile)), 3) for quarter in quarters
        ]
        for column, name in ((1, "first line"), (2, "last line"))
        for percentile in (50, 95)
    }
