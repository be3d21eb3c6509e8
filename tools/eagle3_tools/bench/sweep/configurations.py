"""The servers that a sweep starts itself: plain, speculative, and with acceptance made up."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_tools.bench.sweep.plan import SLACK_TOKENS, SweepPlan

GOLDEN = {1: 1.83, 2: 2.43, 3: 2.88, 4: 3.24, 5: 3.46, 6: 3.62, 7: 3.71, 8: 3.77}
"""Accept length by k that InferenceX found for Kimi-K2.5 with EAGLE-3 on real tasks, thinking on
(golden_al_distribution/kimik2.5_eagle3.yaml at 843c6254): what throughput is compared at."""
NAME = re.compile(r"plain|(k|golden)([1-8])")


@dataclass(frozen=True)
class Configuration:
    """A way to run one build. k = 0: plain decoding; synthetic: the accept length to pretend."""

    name: str
    k: int
    synthetic: float | None = None

    @classmethod
    def of(cls, name: str) -> "Configuration":
        """Reads plain, k3 or golden3; ValueError for other names."""
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
        """The command line of an eagle3-serve that fits the plan; no model means the embedded pair.
        What `rest` says comes last and wins."""
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
