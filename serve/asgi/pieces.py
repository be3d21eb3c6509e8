"""Writes JSON in pieces, so that the event loop serves other requests between those of a large one.

Answers of any size take turns: at any time one of them is being written, for TURN_S seconds.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

TURN_S = 0.005
FREE_S = 0.001
"""The first part of every answer or event waits for no turn: most are not longer."""
PIECE_CHARS = 2**16
NUMBERS = 2**12
"""Entries of a list of numbers that are written at once."""

dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class JsonText(str):
    """JSON text, which is written as it is."""


NULL = JsonText("null")


class JsonList:
    """A list whose items are made while it is written, once."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


class JsonNumbers(JsonList):
    """A list of numbers that may be long."""


def json_pieces(value: Any) -> Iterator[str]:
    """Yield the JSON text of a value, which may hold JsonText, JsonList and JsonNumbers."""
    match value:
        case JsonText():
            yield value
        case dict():
            mark = "{"
            for name, item in value.items():
                yield f"{mark}{dumps(name)}:"
                yield from json_pieces(item)
                mark = ","
            yield "}" if value else "{}"
        case JsonNumbers():
            numbers = list(value)
            starts = range(0, len(numbers), NUMBERS)
            parts = (dumps(numbers[start : start + NUMBERS])[1:-1] for start in starts)
            yield from json_pieces(JsonList(map(JsonText, parts)))
        case JsonList() | list():
            mark = "["
            for item in value:
                yield mark
                yield from json_pieces(item)
                mark = ","
            yield "[]" if mark == "[" else "]"
        case _:
            yield dumps(value)


async def in_turns(texts: Iterable[str]) -> AsyncIterator[bytes]:
    """Yield the texts joined to pieces of at least PIECE_CHARS, but for the last one.

    A text is made in a turn of its answer, so that a piece may take several turns. Halves of
    characters become escapes, as JSON has them.
    """
    rest, taken = iter(texts), list[str]()
    more = _take(rest, taken, FREE_S)
    while more:
        if sum(map(len, taken)) >= PIECE_CHARS:
            yield _encoded(taken)
            taken.clear()
        await asyncio.sleep(0)
        async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            more = _take(rest, taken, TURN_S)
    yield _encoded(taken)


def _take(texts: Iterator[str], taken: list[str], seconds: float) -> bool:
    """Take the texts of one turn, no more than a piece; return whether there may be others."""
    end, size = time.monotonic() + seconds, 0
    for text in texts:
        taken.append(text)
        size += len(text)
        if size >= PIECE_CHARS or time.monotonic() > end:
            return True
    return False


def _encoded(texts: Iterable[str]) -> bytes:
    return "".join(texts).encode(errors="backslashreplace")
