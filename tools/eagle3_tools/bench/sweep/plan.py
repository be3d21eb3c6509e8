"""The runs of a sweep: lengths, loads and seeds. Does not import JAX, so that parsing is fast."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_tools.bench.load.lengths import length_range
from eagle3_tools.bench.load.workload import Endpoint, Workload

SLACK_TOKENS = 16
"""Context tokens beyond prompt and answer: a few texts tokenize to some more tokens."""


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep. `*_per_client` is multiplied by the concurrency."""

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
        """Number of runs for one configuration."""
        return len(self.workloads) * len(self.concurrencies) * len(self.seeds)

    @property
    def longest(self) -> int:
        """Most tokens of a prompt and its answer."""
        return max(
            sum(length_range(w.sampling, n, w.range_ratio)[1] for n in (w.isl, w.osl))
            for w in self.workloads
        )
