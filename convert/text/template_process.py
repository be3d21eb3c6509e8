"""Render a chat template in a process of its own; see `serve.limited`."""

import json
from collections.abc import Callable
from typing import Any

from convert.text.chat_template import break_specials, compile_template, render
from convert.text.special_texts import SpecialTexts
from convert.text.typescript_tools import with_tool_declarations


def encode(value: Any) -> bytes:
    """JSON that may have lone surrogates in its texts."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(data: bytes) -> Any:
    """The value of such JSON."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """Compiles the template. The result answers {"messages", "options"} with {"text"} or
    {"error"}."""
    given = decode(setup)
    template = compile_template(given["template"], "the chat template")
    special = SpecialTexts(given["special"])

    def answer(question: bytes) -> bytes:
        try:
            chat = decode(question)
            options = with_tool_declarations(chat["options"], given["template"])
            messages, options = break_specials([chat["messages"], options], special)
            values = {"tools": None, "add_generation_prompt": True, **given["values"], **options}
            return encode({"text": render(template, messages, given["characters"], **values)})
        except (ValueError, TypeError, RecursionError) as error:
            return encode({"error": str(error)[:1000]})

    return answer
