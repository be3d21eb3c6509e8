"""Requests of many kinds, and what plain decoding answers to each alone."""

import pytest
from driving import sizes

from eagle3_jax.engine import Engine
from eagle3_jax.models.target import Target


@pytest.fixture(scope="session")
def plain_engine(target: Target) -> Engine:
    """Plain decoding, one sequence at a time."""
    engine = Engine(target, None, sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,)))
    return engine
