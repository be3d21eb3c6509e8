"""Write a safetensors file whose tensors arrive in pieces and in any order."""

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from convert.quantize.scheme import Part
from convert.safetensors_files import DTYPES


def part_bytes(part: Part) -> int:
    """Size of a tensor's data in bytes."""
    return math.prod(part.shape) * DTYPES[part.dtype].itemsize


class ShardFile:
    """A new file with a complete header; each tensor is appended to on its own.

    Used as a context manager: leaving it without an error checks that every tensor is whole.
    """

    def __init__(self, path: Path, parts: Mapping[str, Part]) -> None:
        header, starts = _lay_out(parts)
        self._file = path.open("xb")
        self._file.write(header)
        self._next = {name: len(header) + start for name, start in starts.items()}
        self._end = {name: self._next[name] + part_bytes(part) for name, part in parts.items()}

    def append(self, name: str, data: bytes) -> None:
        """Writes the next bytes of one tensor."""
        self._file.seek(self._next[name])
        self._file.write(data)
        self._next[name] += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                assert self._next == self._end, "a tensor is not whole"
                self._file.flush()
                os.fsync(self._file.fileno())


def _lay_out(parts: Mapping[str, Part]) -> tuple[bytes, dict[str, int]]:
    """The header, and where each tensor starts after it; widest first, so all are aligned."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts, end = {}, 0
    for name in sorted(parts, key=lambda name: (-DTYPES[parts[name].dtype].itemsize, name)):
        starts[name], end = end, end + part_bytes(parts[name])
        header[name] = {
            "dtype": parts[name].dtype,
            "shape": list(parts[name].shape),
            "data_offsets": [starts[name], end],
        }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded, starts
