"""Configurations of servers that a sweep starts: plain, speculative, synthetic acceptance."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_tools.bench.load.lengths import Endpoint, Workload, length_range

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
        return len(self.workloads) * len(self.concurrencies) * len(self.seeds)

    @property
    def longest(self) -> int:
        """Most tokens of a prompt and its answer."""
        return max(
            sum(length_range(w.sampling, n, w.range_ratio)[1] for n in (w.isl, w.osl))
            for w in self.workloads
        )


GOLDEN = {1: 1.83, 2: 2.43, 3: 2.88, 4: 3.24, 5: 3.46, 6: 3.62, 7: 3.71, 8: 3.77}
"""Accept lengths by k at which throughput is compared: InferenceX's for Kimi-K2.5 with EAGLE-3.

Measured on real tasks, thinking on (golden_al_distribution/kimik2.5_eagle3.yaml at 843c6254).
"""
NAME = re.compile(r"plain|(k|golden)([1-8])")


@dataclass(frozen=True)
class Configuration:
    """A server configuration. k = 0 is plain decoding; `synthetic` is a synthetic accept length."""

    name: str
    k: int
    synthetic: float | None = None

    @classmethod
    def of(cls, name: str) -> "Configuration":
        """Parse plain, k3 or golden3; raise ValueError for other names."""
        found = NAME.fullmatch(name)
        if not found:
            raise ValueError(
                "--configurations are plain, k1 to k8, and golden1 to golden8 (synthetic "
                f"acceptance at InferenceX's accept length); got {name!r}"
            )
        if name == "plain":
            return cls(name, 0)
        k = int(found[2])
        return cls(name, k, GOLDEN[k] if found[1] == "golden" else None)

    def server_flags(
        self, plan: SweepPlan, model: str | None, draft: str | None, rest: Sequence[str]
    ) -> list[str]:
        """Return the flags of eagle3-serve for the plan (no model: embedded pair); `rest` wins."""
        keys: dict[str, object] = {"num_speculative_tokens": self.k}
        if draft and self.k:
            keys["model"] = draft
        if self.synthetic is not None:
            keys["rejection_sample_method"] = "synthetic"
            keys["synthetic_acceptance_length"] = self.synthetic
        speculates = self.k or model is None
        speculation = ["--speculative-config", json.dumps(keys)] if speculates else []
        most, longest = max(plan.concurrencies), plan.longest + SLACK_TOKENS
        sizes = ["--max-num-seqs", f"{most}", "--max-model-len", f"{longest}"]
        own = [model or "--demo", *speculation, *sizes, "--no-enable-prefix-caching"]
        return [*own, *rest]
