"""Requests of many kinds, and what plain decoding answers to each alone."""

from dataclasses import replace

import pytest
from driving import Answer, drive, sizes
from tiny import VOCAB

from eagle3_jax.engine import Engine, Request
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling_params import SamplingParams

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


@pytest.fixture(scope="session")
def plain_engine(target: KimiTarget) -> Engine:
    """Plain decoding, one sequence at a time."""
    engine = Engine(target, None, sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,)))
    return engine


@pytest.fixture(scope="session")
def requests() -> list[Request]:
    return mixed_requests(12)


@pytest.fixture(scope="session")
def plain(plain_engine: Engine, requests: list[Request]) -> dict[str, Answer]:
    """What every request is answered when it is alone and nothing is speculated."""
    answers: dict[str, Answer] = {}
    for request in requests:
        answers |= drive(plain_engine, [request])
    assert plain_engine.stats().num_preemptions == 0
    return answers
