"""The container of executables, built from its documentation; test_compiled reads real ones."""

import struct

import pytest

from eagle3_tools.amdgpu.program.protobuf import Message
from eagle3_tools.amdgpu.program.serialized import read_serialized

NAME = b"xla.gpu.GpuExecutableProto"
SIGNATURE_HASH = bytes.fromhex("83af70d10d884a3f")
BLOCK = 65536


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def literals(data: bytes) -> bytes:
    """Make a Snappy block without copies, after its size."""
    parts = [data[at : at + 60] for at in range(0, len(data), 60)]
    packed = b"".join(bytes([len(part) - 1 << 2]) + part for part in parts)
    return varint(len(data)) * 2 + packed


def chunk(kind: bytes, data: bytes, records: int) -> bytes:
    header = struct.pack("<QQQ", 0, len(data), 0) + kind + records.to_bytes(7, "little")
    return header + struct.pack("<Q", 0) + data


def records(values: list[bytes], packed: bytes, kind: bytes = b"s") -> bytes:
    sizes = literals(b"".join(varint(len(value)) for value in values))
    return chunk(b"r", kind + varint(len(sizes)) + sizes + packed, len(values))


def serialized(*chunks: bytes) -> bytes:
    stream, file = chunk(b"s", b"", 0) + b"".join(chunks), b""
    while stream:
        file += (b"" if file else SIGNATURE_HASH).ljust(24, b"\0") + stream[: BLOCK - 24]
        stream = stream[BLOCK - 24 :]
    return varint(5) + b"ifrt!" + field(1, file)


def manifest(*parts: bytes) -> bytes:
    return field(1, NAME) + b"".join(field(2, part) for part in parts)


MERGED, SPLIT_OFF = field(2, b""), field(3, field(1, b"\x08\x04"))


def test_parts_of_a_message_are_merged_and_what_is_split_off_is_left_out():
    values = [manifest(MERGED, SPLIT_OFF, MERGED), field(8, b"one"), b"binary", field(9, b"two")]
    message = read_serialized(serialized(records(values, literals(b"".join(values)))))
    assert message.fields == [8, 9] and (message.text(8), message.text(9)) == ("one", "two")


def test_records_reach_across_blocks_of_the_file():
    long = bytes(range(256)) * 1000
    values = [manifest(MERGED), field(8, long)]
    data = serialized(records(values, literals(b"".join(values))))
    assert len(data) > 3 * BLOCK and read_serialized(data).data(8) == long


@pytest.mark.parametrize(
    "copy", [bytes([5 << 2 | 1, 2]), bytes([8 << 2 | 2, 2, 0]), bytes([8 << 2 | 3, 2, 0, 0, 0])]
)
def test_a_copy_may_reach_into_what_it_writes(copy: bytes):
    """Each of Snappy's three copies encodes nine bytes from two bytes before the end."""
    first, last = manifest(MERGED), field(8, b"ab" + b"ababababa")
    start = first + last[:-9]
    packed = varint(len(first + last)) * 2 + literals(start)[2 * len(varint(len(start))) :] + copy
    assert read_serialized(serialized(records([first, last], packed))).text(8) == "abababababa"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (varint(0) + field(1, b"something"), "Riegeli file"),
        (serialized(chunk(b"t", b"", 1)), "simple records"),
        (serialized(records([NAME], b"", kind=b"b")), "Snappy"),
        (serialized(records([b""], literals(b""))), NAME.decode()),
    ],
)
def test_what_is_not_known_is_refused(data: bytes, said: str):
    with pytest.raises(ValueError, match=said):
        read_serialized(data)


def test_a_message_that_ends_too_early_is_refused():
    with pytest.raises(ValueError, match="expected 5 bytes"):
        Message(field(1, b"abcde")[:-1])


def test_repeated_numbers_are_read_packed_or_not():
    packed, single = field(3, varint(300) + varint(7)), varint(3 << 3) + varint(9)
    assert Message(packed + single).numbers(3) == (300, 7, 9)
