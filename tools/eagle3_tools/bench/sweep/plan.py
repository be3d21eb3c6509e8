"""What a sweep runs: lengths, loads and seeds. Nothing here imports JAX: flags are read first."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_tools.bench.load.lengths import length_range
from eagle3_tools.bench.load.workload import Endpoint, Workload

SLACK_TOKENS = 16
"""Beyond the longest prompt and answer: a few texts are read as some tokens more."""


@dataclass(frozen=True)
class SweepPlan:
    """What is run. workloads: one for each ISL/OSL; *_per_client: times the concurrency."""

    workloads: Sequence[Workload]
    concurrencies: Sequence[int]
    seeds: Sequence[int]
    prompts_per_client: int = 10
    warmups_per_client: int = 2
    rate: float = float("inf")
    endpoint: Endpoint = "completions"
    percentiles: Sequence[float] = (50.0, 90.0, 99.0, 99.9)
    gpus: int = 1
    device: str = "not said"

    @property
    def runs(self) -> int:
        """How many runs one configuration has."""
        return len(self.workloads) * len(self.concurrencies) * len(self.seeds)

    @property
    def longest(self) -> int:
        """The most tokens that a prompt and its answer may have."""
        return max(
            sum(length_range(w.sampling, n, w.range_ratio)[1] for n in (w.isl, w.osl))
            for w in self.workloads
        )
