"""Servers with Anthropic's own client."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import anthropic
import pytest
from chat_tokenizers import kimi, minimax
from fake_server import Served
from scripted_engine import ScriptedEngine

TOKENIZERS = {"kimi_k2": kimi, "minimax_m2": minimax}


@pytest.fixture(scope="session")
def connect() -> Iterator[Callable[..., anthropic.Anthropic]]:
    """Clients of given servers."""
    with ExitStack() as stack:

        def client_of(server: Served, **options: Any) -> anthropic.Anthropic:
            given = {"api_key": "none", "max_retries": 0, **options}
            client = anthropic.Anthropic(base_url=str(server.http.base_url), **given)
            return stack.enter_context(client)

        yield client_of


@pytest.fixture(scope="session")
def client(fake: Served, connect: Callable[..., anthropic.Anthropic]) -> anthropic.Anthropic:
    """A client of the shared server over the fake engine."""
    return connect(fake)


@pytest.fixture
def say(serve: Callable[..., Served]) -> Callable[..., Served]:
    """Starts a server that answers with this text, in which special strings are special."""

    def start(text: str, chat_format: str = "kimi_k2", **options: Any) -> Served:
        tokenizer = TOKENIZERS[chat_format]()
        answers = [tokenizer.encode(text, add_special=True)]
        engine = ScriptedEngine(tokenizer=tokenizer, answers=answers)
        return serve(engine, tokenizer=tokenizer, **options)

    return start
