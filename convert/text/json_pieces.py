"""Write JSON in pieces, so that no call of Python's JSON writer holds the GIL for long."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

PIECE_CHARS = 2**16
NUMBERS = 2**12
"""Numbers of a list that are written at once."""


dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class JsonText(str):
    """JSON text, which is written unchanged."""


NULL = JsonText("null")


class JsonList:
    """A list that can be iterated once; its items are made while it is written."""

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
        case str() if len(value) > PIECE_CHARS:
            yield '"'
            for start in range(0, len(value), PIECE_CHARS):
                yield dumps(value[start : start + PIECE_CHARS])[1:-1]
            yield '"'
        case _:
            yield dumps(value)


def json_bytes(value: Any) -> bytes:
    """Return the JSON text of a value; lone surrogates become JSON escapes."""
    return b"".join(map(encoded, json_pieces(value)))


def encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
