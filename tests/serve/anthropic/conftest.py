"""Servers with Anthropic's own client."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import pytest
from fake_server import Served


@pytest.fixture(scope="session")
def connect() -> Iterator[Callable[..., anthropic.Anthropic]]:
    with ExitStack() as stack:

        def client_of(server: Served, **options: Any) -> anthropic.Anthropic:
            given = {"api_key": "none", "max_retries": 0, **options}
            client = anthropic.Anthropic(base_url=str(server.http.base_url), **given)
            return stack.enter_context(client)

        yield client_of


@pytest.fixture(scope="session")
def client(fake: Served, connect: Callable[..., anthropic.Anthropic]) -> anthropic.Anthropic:
    return connect(fake)
