"""Damaged executables and messages are refused; test_compiled reads real ones."""

import pytest

from eagle3_tools.amdgpu.program.protobuf import Message
from eagle3_tools.amdgpu.program.serialized import read_serialized


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def test_another_file_is_refused():
    with pytest.raises(ValueError, match="Riegeli file"):
        read_serialized(varint(0) + field(1, b"something"))


def test_a_message_that_ends_too_early_is_refused():
    with pytest.raises(ValueError, match="expected 5 bytes"):
        Message(field(1, b"abcde")[:-1])


def test_repeated_numbers_are_read_packed_or_not():
    packed, single = field(3, varint(300) + varint(7)), varint(3 << 3) + varint(9)
    assert Message(packed + single).numbers(3) == (300, 7, 9)
