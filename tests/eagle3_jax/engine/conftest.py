"""Requests of many kinds, and what plain decoding answers to each alone."""

import pytest
from driving import Answer, drive, sizes
from engine_requests import mixed_requests

from eagle3_jax.engine import Engine, Request
from eagle3_jax.models.target import Target


@pytest.fixture(scope="session")
def plain_engine(target: Target) -> Engine:
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
