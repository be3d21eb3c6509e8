"""Servers whose model says given texts."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chat_tokenizers import kimi, minimax
from fake_server import Served, served
from scripted_engine import ScriptedEngine

TOKENIZERS = {"kimi_k2": kimi, "minimax_m2": minimax}
Say = Callable[..., Served]


def saying(text: str, chat_format: str) -> ScriptedEngine:
    """An engine that answers with this text, in which special strings are special."""
    tokenizer = TOKENIZERS[chat_format]()
    answers = [tokenizer.encode(text, add_special=True)]
    return ScriptedEngine(tokenizer=tokenizer, answers=answers)


@pytest.fixture
def say(serve: Callable[..., Served]) -> Say:
    """Starts a server that answers with this text."""

    def start(text: str, chat_format: str = "kimi_k2", **options: Any) -> Served:
        engine = saying(text, chat_format)
        return serve(engine, tokenizer=engine.tokenizer, **options)

    return start


@pytest.fixture(scope="module")
def hello() -> Iterator[Served]:
    """A server that says hello, for tests that leave nothing behind."""
    engine = saying("hello", "kimi_k2")
    with served(engine, tokenizer=engine.tokenizer) as server:
        yield server
