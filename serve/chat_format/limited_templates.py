"""Chat templates rendered in processes of their own, within a time, a size and a memory.

A template is data from a checkpoint, and its variables come from clients: an endless loop, or one
product of a text and a number, must not be the end of the server.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from convert.text.json_pieces import json_bytes
from convert.text.tokenizer import Tokenizer
from serve.limited.workers import BusyError, EndedError, Limits, Workers

SECONDS, WALL_SECONDS = 5.0, 20.0
"""Of a processor, and how long an answer is waited for on a machine with other work."""
CHARACTERS = 2**24
MEMORY_BYTES = 2**31


def limited(tokenizer: Tokenizer, seconds: float = SECONDS) -> Tokenizer:
    """The same, but chats are rendered by processes that are limited; they end with this one."""
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
        """The text, with the special texts in the messages broken; ValueError without one."""
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
