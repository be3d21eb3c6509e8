"""Render a chat template in a process of its own, with limits on memory and time.

Lines of JSON come in and go out: first the template and its limits, then a chat each. Work that
takes too long ends the process, in one call of C too; memory is bounded by the system.
"""

import json
import resource
import signal
import sys
from typing import Any

from convert.text.chat_template import break_specials, compile_template, render
from convert.text.special_texts import SpecialTexts


def encode_line(value: Any) -> bytes:
    """A line that may have lone surrogates in its texts."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def decode_line(line: bytes) -> Any:
    """The value of such a line."""
    return json.loads(line.decode("utf-8", "surrogatepass"))


def main() -> None:
    """Answers {"text"} or {"error"} to every {"messages", "options"} until the input ends."""
    setup = decode_line(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (setup["memory_bytes"], setup["memory_bytes"]))
    template = compile_template(setup["template"], "the chat template")
    special = SpecialTexts(setup["special"])
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, setup["seconds"])  # Its signal ends the process.
        try:
            chat = decode_line(line)
            messages, options = break_specials([chat["messages"], chat["options"]], special)
            values = {"tools": None, "add_generation_prompt": True, **setup["values"], **options}
            answer = {"text": render(template, messages, setup["characters"], **values)}
        except MemoryError:
            answer = {"error": "the chat template needs too much memory for these messages"}
        except (ValueError, TypeError, RecursionError) as error:
            answer = {"error": str(error)[:1000]}
        line = encode_line(answer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
