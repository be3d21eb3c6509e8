"""Global memory with a program's buffers, of which a launch can access only its arguments.

XLA packs arrays with disjoint lifetimes into one buffer. A launch may therefore access only its
slices, and those that it writes count as unwritten before.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory
from eagle3_tools.amdgpu.program.executable import Slice

_ROOM = 16384
"""Bytes around a buffer for guards and for data that a launch adds."""


class ProgramMemory(GlobalMemory):
    """Memory with `buffers` (number -> bytes); `addresses` are their start addresses."""

    def __init__(self, buffers: Mapping[int, int], poison: int = 0):
        super().__init__(sum(size + _ROOM for size in buffers.values()) + 4 * _ROOM, poison)
        self.addresses = {n: self.allocate(size, f"buffer {n}") for n, size in buffers.items()}

    def address(self, where: Slice) -> int:
        """Return the address of the slice's first byte."""
        return self.addresses[where.buffer] + where.offset

    def forget(self, where: Slice) -> None:
        """Mark the slice's bytes as unwritten."""
        start = self._inside(self.address(where), where.size)
        self.writers[start : start + where.size] = 0
        words = np.full(-(-where.size // 4), self._poison)
        self.bytes[start : start + where.size] = words.view(np.uint8)[: where.size]

    @contextmanager
    def only(self, seen: Iterable[tuple[Slice, str]]) -> Iterator[None]:
        """Restrict memory to these named slices within the context."""
        spans: list[list[int]] = []
        names: list[str] = []
        for start, size, name in sorted(self._place(where, name) for where, name in seen):
            if spans and start < spans[-1][1]:
                spans[-1][1], names[-1] = max(spans[-1][1], start + size), f"{names[-1]}, {name}"
            else:
                spans.append([start, start + size])
                names.append(name)
        kept = self._starts, self._ends, self._names, self._top
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        self._starts, self._ends, self._names = bounds[:, 0], bounds[:, 1], names
        try:
            yield
        finally:
            self._starts, self._ends, self._names, self._top = kept

    def check_kept(self, where: Slice, name: str) -> None:
        """Raise Fault if the last launch wrote to the slice."""
        start = self._inside(self.address(where), where.size)
        if (self.writers[start : start + where.size] >= self.launch).any():
            raise Fault(f"a store to {name}, which it must only read")

    def _place(self, where: Slice, name: str) -> tuple[int, int, str]:
        """Return the slice in whole words: XLA swaps the word that contains a smaller element."""
        start = self._inside(self.address(where), where.size)
        end = -(-(start + where.size) // 4) * 4
        padding = self.writers[start + where.size : end]
        np.maximum(padding, 1, out=padding)
        return start, end - start, name
