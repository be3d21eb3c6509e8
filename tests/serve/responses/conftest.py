"""Servers whose model says given texts, and what is asked of them."""

from collections.abc import Callable
from typing import Any

import pytest
from chat_tokenizers import kimi, minimax
from fake_server import Served
from scripted_engine import ScriptedEngine

TOKENIZERS = {"kimi_k2": kimi, "minimax_m2": minimax}
Say = Callable[..., Served]


@pytest.fixture
def say(serve: Callable[..., Served]) -> Say:
    """Starts a server that answers with this text, in which special strings are special."""

    def start(text: str, chat_format: str = "kimi_k2", **options: Any) -> Served:
        tokenizer = TOKENIZERS[chat_format]()
        answers = [tokenizer.encode(text, add_special=True)]
        engine = ScriptedEngine(tokenizer=tokenizer, answers=answers)
        return serve(engine, tokenizer=tokenizer, **options)

    return start
