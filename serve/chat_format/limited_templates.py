"""Chat templates rendered in processes of their own, within a time, a size and a memory.

A template is data from a checkpoint, and its variables come from clients: an endless loop, or one
product of a text and a number, must not be the end of the server.
"""

import queue
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import convert
from convert.text.template_process import decode_line, encode_line
from convert.text.tokenizer import Tokenizer

SECONDS = 5.0
CHARACTERS = 2**24
MEMORY_BYTES = 2**31
PROCESSES = 2
# A package without its own __init__, which would import JAX.
START = """import sys, types
convert = sys.modules["convert"] = types.ModuleType("convert")
convert.__path__ = [sys.argv[1]]
from convert.text.template_process import main
main()"""
COMMAND = [sys.executable, "-I", "-c", START, str(Path(str(convert.__file__)).parent)]


def limited(tokenizer: Tokenizer, seconds: float = SECONDS) -> Tokenizer:
    """The same, but chats are rendered by processes that are limited; they end with this one."""
    if tokenizer.template_text is None:
        return tokenizer
    setup = {
        "template": tokenizer.template_text,
        "special": [token.text for token in tokenizer.special_tokens],
        "values": tokenizer.named_tokens,
        "seconds": seconds,
        "characters": CHARACTERS,
        "memory_bytes": MEMORY_BYTES,
    }
    return replace(tokenizer, render_apart=_Processes(encode_line(setup), seconds).render)


class _Processes:
    """As many as may render at a time, started again when one has ended."""

    def __init__(self, setup: bytes, seconds: float) -> None:
        self._setup = setup
        self._seconds = seconds
        self._free: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._free.put(self._start())
        for _ in range(PROCESSES - 1):
            self._free.put(None)
        weakref.finalize(self, _end_all, self._free)

    def render(self, messages: Sequence[Any], options: dict[str, Any]) -> str:
        """The text, with the special texts in the messages broken; ValueError without one. Waits
        until a process is free and has answered."""
        line = encode_line({"messages": messages, "options": options})
        process = self._free.get()
        try:
            if process is None or process.poll() is not None:
                process = self._start()
            answered = _ask(process, line)
            if not answered.endswith(b"\n"):
                process = _end(process)
        finally:
            self._free.put(process)
        if process is None:
            message = f"the chat template took more than {self._seconds:g} seconds or too much"
            raise ValueError(f"{message} memory for these messages")
        answer = decode_line(answered)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["text"]

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin
        with suppress(OSError):
            process.stdin.write(self._setup)
            process.stdin.flush()
        return process


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """The line it answers; no whole one if it ends."""
    assert process.stdin and process.stdout
    with suppress(OSError):
        process.stdin.write(line)
        process.stdin.flush()
    return process.stdout.readline()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(OSError):
        process.communicate()


def _end_all(free: queue.SimpleQueue[subprocess.Popen[bytes] | None]) -> None:
    while not free.empty():
        if process := free.get():
            _end(process)
