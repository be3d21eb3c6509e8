"""Renders chat templates in separate processes, with limits of time, size and memory.

A template is data from a checkpoint, and its variables come from clients. An endless loop, or the
product of a text and a number, must not take the server down.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from convert.text.json_pieces import json_bytes
from convert.text.tokenizer import Tokenizer
from serve.limited.workers import BusyError, EndedError, Limits, Workers

SECONDS, WALL_SECONDS = 5.0, 20.0
"""Limits of processor time, and of the time to wait on a machine with other load."""
CHARACTERS = 2**24
MEMORY_BYTES = 2**31


def limited(tokenizer: Tokenizer, seconds: float = SECONDS) -> Tokenizer:
    """Return a tokenizer that renders chats in limited processes, which end with this one."""
    if tokenizer.template_text is None:
        return tokenizer
    setup = {
        "template": tokenizer.template_text,
        "special": [token.text for token in tokenizer.special_tokens],
        "values": tokenizer.named_tokens,
        "characters": CHARACTERS,
    }
    workers = Workers("convert.text.template_process", json_bytes(setup), reused=True)
    workers.start()
    limits = Limits(seconds, MEMORY_BYTES, WALL_SECONDS)

    def render(messages: Sequence[Any], options: dict[str, Any]) -> str:
        """Render in a worker, breaking up special tokens in messages. ValueError on failure."""
        question = json_bytes({"messages": messages, "options": options})
        try:
            answer = json.loads(workers.ask(question, limits))
        except EndedError as error:
            message = f"the chat template took more than {seconds:g} seconds or too much memory"
            raise ValueError(f"{message} for these messages") from error
        except BusyError as error:
            raise ValueError(f"the chat template was not rendered: {error}") from error
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["text"]

    return replace(tokenizer, render_apart=render)
