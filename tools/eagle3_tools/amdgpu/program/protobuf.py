"""Reads protocol buffers by field number, without their schema.

Source: "Encoding" of the Protocol Buffers documentation. XLA's .proto files say what the numbers
mean; numbers of fields never change.
"""

from collections import defaultdict
from typing import Any

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


class Message:
    """A message, whose parts are read when they are asked for; what is not there is 0 or empty."""

    def __init__(self, data: bytes = b""):
        self._fields: dict[int, list[Any]] = defaultdict(list)
        at = 0
        while at < len(data):
            tag, at = read_varint(data, at)
            value, at = _value(tag & 7, data, at)
            self._fields[tag >> 3].append(value)

    def __contains__(self, field: int) -> bool:
        return field in self._fields

    @property
    def fields(self) -> list[int]:
        """The numbers of those that are there."""
        return list(self._fields)

    def all(self, field: int) -> list["Message"]:
        """The messages of a repeated field."""
        return [Message(value) for value in self._fields.get(field, [])]

    def one(self, *path: int) -> "Message":
        """The message in a field, or in a field of that, and so on."""
        found = Message(self.data(path[0]))
        return found.one(*path[1:]) if path[1:] else found

    def number(self, field: int) -> int:
        """An integer, boolean or enumeration."""
        return self._fields.get(field, [0])[-1]

    def numbers(self, field: int) -> tuple[int, ...]:
        """A repeated one, whether packed or not."""
        found: list[int] = []
        for value in self._fields.get(field, []):
            found += _packed(value) if isinstance(value, bytes) else [value]
        return tuple(found)

    def data(self, field: int) -> bytes:
        """Bytes, or a fixed number's; packed fixed numbers lie behind each other."""
        return self._fields.get(field, [b""])[-1]

    def text(self, field: int) -> str:
        return self.data(field).decode()


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where the next thing begins."""
    number = shift = 0
    while True:
        byte = data[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def _value(kind: int, data: bytes, at: int) -> tuple[Any, int]:
    if kind == _VARINT:
        return read_varint(data, at)
    if kind not in (_EIGHT_BYTES, _BYTES, _FOUR_BYTES):
        raise ValueError(f"expected a protocol buffer, got wire type {kind} at byte {at}")
    size, at = read_varint(data, at) if kind == _BYTES else (8 if kind == _EIGHT_BYTES else 4, at)
    if at + size > len(data):
        raise ValueError(f"expected {size} bytes at byte {at}, got {len(data) - at}")
    return data[at : at + size], at + size


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = read_varint(data, at)
        found.append(number)
    return found
