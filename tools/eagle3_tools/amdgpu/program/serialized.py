"""Unpacks a serialised executable: XLA's split protocol buffer in a Riegeli file.

Sources: Riegeli's "riegeli/records file format", Snappy's "format_description.txt", XLA's
"util/split_proto/split_proto.proto". Around that, PJRT and IFRT each add a message.
"""

import struct

from eagle3_tools.amdgpu.program.protobuf import Message, read_varint

_BLOCK, _BLOCK_HEADER, _CHUNK_HEADER = 1 << 16, 24, 40
_SIGNATURE = bytes.fromhex("83af70d10d884a3f")
_RECORDS, _WITHOUT_RECORDS = "r", "smp"
_RESULT_TYPE, _PARTS, _MERGED = 1, 2, 2
_EXECUTABLE = "xla.gpu.GpuExecutableProto"


def read_serialized(data: bytes) -> Message:
    """The GpuExecutableProto in what a loaded or compiled executable's `serialize()` gives.

    Texts and binaries that XLA splits off are left out: the kernels' code is not among them.
    Raises ValueError where it is in a form that is not known.
    """
    size, start = read_varint(data, 0)
    manifest, *parts = _records(Message(data[start + size :]).data(1))
    said = Message(manifest)
    if said.text(_RESULT_TYPE) != _EXECUTABLE:
        raise ValueError(f"expected a {_EXECUTABLE}, got a {said.text(_RESULT_TYPE)!r}")
    kinds = said.all(_PARTS)
    merged = (part for part, kind in zip(parts, kinds, strict=True) if _MERGED in kind)
    return Message(b"".join(merged))  # Messages behind each other are one merged message.


def _records(file: bytes) -> list[bytes]:
    if not file.startswith(_SIGNATURE):
        raise ValueError(f"expected a Riegeli file, got one that begins with {file[:8].hex()}")
    blocks = (file[at + _BLOCK_HEADER : at + _BLOCK] for at in range(0, len(file), _BLOCK))
    stream, at, found = b"".join(blocks), 0, []
    while at < len(stream):
        (size,) = struct.unpack_from("<Q", stream, at + 8)
        kind, count = chr(stream[at + 24]), int.from_bytes(stream[at + 25 : at + 32], "little")
        start, at = at + _CHUNK_HEADER, at + _CHUNK_HEADER + max(size, count - _CHUNK_HEADER)
        if kind == _RECORDS:
            found += _simple_chunk(stream[start : start + size], count)
        elif kind not in _WITHOUT_RECORDS:
            raise ValueError(f"expected a Riegeli chunk of simple records, got kind {kind!r}")
    return found


def _simple_chunk(chunk: bytes, count: int) -> list[bytes]:
    if chunk[:1] != b"s":
        raise ValueError(f"expected records compressed by Snappy, got {chunk[:1]!r}")
    size, at = read_varint(chunk, 1)
    sizes, values = _decompress(chunk[at : at + size]), _decompress(chunk[at + size :])
    found, at, begin = [], 0, 0
    for _ in range(count):
        length, at = read_varint(sizes, at)
        found.append(values[begin : begin + length])
        begin += length
    return found


def _decompress(block: bytes) -> bytes:
    """A block of Snappy behind its decompressed size."""
    size, at = read_varint(block, read_varint(block, 0)[1])
    out = bytearray()
    while at < len(block):
        tag, at = block[at], at + 1
        length, kind = tag >> 2, tag & 3
        if kind == 0:
            extra = max(0, length - 59)
            if extra:
                length = int.from_bytes(block[at : at + extra], "little")
            at, length = at + extra, length + 1
            out += block[at : at + length]
            at += length
            continue
        if kind == 1:
            offset, at, length = tag >> 5 << 8 | block[at], at + 1, (length & 7) + 4
        else:
            bytes_ = 2 if kind == 2 else 4
            offset, length = int.from_bytes(block[at : at + bytes_], "little"), length + 1
            at += bytes_
        _repeat(out, offset, length)
    if len(out) != size:
        raise ValueError(f"expected {size} bytes in a block of Snappy, got {len(out)}")
    return bytes(out)


def _repeat(out: bytearray, offset: int, length: int) -> None:
    """Copies from `offset` bytes before the end, which may reach into what is being copied."""
    begin = len(out) - offset
    period = bytes(out[begin : begin + length])
    out += (period * -(-length // len(period)))[:length]
