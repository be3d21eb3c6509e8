"""A server that says hello."""

from collections.abc import Iterator

import pytest
from called_tools import saying
from fake_server import Served, served


@pytest.fixture(scope="module")
def hello() -> Iterator[Served]:
    """For tests that leave nothing behind."""
    engine = saying("hello")
    with served(engine, tokenizer=engine.tokenizer) as server:
        yield server
