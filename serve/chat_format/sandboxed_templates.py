"""Render chat templates in a sandbox, with limits of time, size and memory.

A template is data from a checkpoint, and its variables come from clients. An endless loop, or the
product of a text and a number, must not take the server down.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from convert.text.chat_template import break_specials, compile_template, render
from convert.text.json_pieces import json_bytes
from convert.text.special_texts import SpecialTexts
from convert.text.typescript_tools import with_tool_declarations
from serve.sandbox.sandbox import BusyError, EndedError, Limits, Sandbox

if TYPE_CHECKING:
    from convert.text.tokenizer import Tokenizer

SECONDS, WALL_SECONDS = 5.0, 20.0
"""Limits of processor time, and of the time to wait on a machine with other load."""
CHARACTERS = 2**24
MEMORY_BYTES = 2**31


def sandboxed(tokenizer: "Tokenizer", owner: ExitStack, seconds: float = SECONDS) -> "Tokenizer":
    """Return a tokenizer that renders chats in a sandbox, which `owner` ends."""
    if tokenizer.template_text is None:
        return tokenizer
    setup = {
        "template": tokenizer.template_text,
        "special": [token.text for token in tokenizer.special_tokens],
        "values": tokenizer.named_tokens,
        "characters": CHARACTERS,
    }
    sandbox = owner.enter_context(Sandbox(__name__, json_bytes(setup), reused=True))
    limits = Limits(seconds, MEMORY_BYTES, WALL_SECONDS)

    def render_apart(messages: Sequence[Any], options: dict[str, Any]) -> str:
        """Render in a worker, breaking up special tokens in messages. ValueError on failure."""
        question = json_bytes({"messages": messages, "options": options})
        try:
            answer = json.loads(sandbox.ask(question, limits))
        except EndedError as error:
            message = f"the chat template took more than {seconds:g} seconds or too much memory"
            raise ValueError(f"{message} for these messages") from error
        except BusyError as error:
            raise ValueError(f"the chat template was not rendered: {error}") from error
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["text"]

    return replace(tokenizer, render_apart=render_apart)


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """Compile a template; return its renderer: {"messages", "options"} -> {"text"} or {"error"}."""
    given = json.loads(setup)
    template = compile_template(given["template"], "the chat template")
    special = SpecialTexts(given["special"])

    def answer(question: bytes) -> bytes:
        try:
            chat = json.loads(question)
            options = with_tool_declarations(chat["options"], given["template"])
            messages, options = break_specials([chat["messages"], options], special)
            values = {"tools": None, "add_generation_prompt": True, **given["values"], **options}
            return json_bytes({"text": render(template, messages, given["characters"], **values)})
        except (ValueError, TypeError, RecursionError) as error:
            return json_bytes({"error": str(error)[:1000]})

    return answer
