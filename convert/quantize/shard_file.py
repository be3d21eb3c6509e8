"""Write a safetensors file whose tensors arrive in pieces and in any order."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from convert.files.safetensors_files import DTYPES, encode_header
from convert.quantize.schemes.quantizer import Part


class ShardFile:
    """A new file with a complete header; each tensor is appended to on its own.

    Used as a context manager: leaving it without an error checks that every tensor is whole.
    """

    def __init__(self, path: Path, parts: Mapping[str, Part]) -> None:
        # Widest first, so all are aligned.
        order = sorted(parts, key=lambda name: (-DTYPES[parts[name].dtype].itemsize, name))
        header, self._next = encode_header((n, parts[n].dtype, parts[n].shape) for n in order)
        self._file = path.open("xb")
        self._file.write(header)
        self._end = {name: self._next[name] + part.nbytes for name, part in parts.items()}

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
