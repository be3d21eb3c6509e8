"""Requests of many kinds for engines."""

from dataclasses import replace

from tiny import VOCAB

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
KINDS = (
    GREEDY,
    SamplingParams(temperature=0.6, top_p=0.9),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=1.0, top_k=8),
)


def mixed_requests(count: int) -> list[Request]:
    """Greedy and sampled requests in turn; prompts of 1 to 20 tokens, answers of 25 to 40."""
    return [
        Request(
            f"request-{i}",
            [(7 * i + 3 * j * j) % VOCAB for j in range(1 + (5 * i) % 20)],
            replace(KINDS[i % len(KINDS)], seed=i, max_tokens=25 + (4 * i) % 16),
        )
        for i in range(count)
    ]
