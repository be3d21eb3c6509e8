"""Render a chat template in a separate process; see `serve.limited`."""

import json
from collections.abc import Callable

from convert.text.chat_template import break_specials, compile_template, render
from convert.text.json_pieces import json_bytes
from convert.text.special_texts import SpecialTexts
from convert.text.typescript_tools import with_tool_declarations


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
