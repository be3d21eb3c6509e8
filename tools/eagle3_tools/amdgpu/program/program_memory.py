"""Global memory with the buffers of a program, of which a launch sees only its arguments.

XLA packs arrays whose lives don't overlap into one buffer. So a launch may access the slices that
it is given and nothing else, and what it is to write holds nothing before.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory
from eagle3_tools.amdgpu.program.executable import Slice

_ROOM = 16384
"""Bytes around a buffer: for guards, and for what a launch adds."""


class ProgramMemory(GlobalMemory):
    """buffers: number -> bytes. addresses: where each begins."""

    def __init__(self, buffers: Mapping[int, int], poison: int = 0):
        super().__init__(sum(size + _ROOM for size in buffers.values()) + 4 * _ROOM, poison)
        self.addresses = {n: self.allocate(size, f"buffer {n}") for n, size in buffers.items()}

    def address(self, where: Slice) -> int:
        """Of its first byte."""
        return self.addresses[where.buffer] + where.offset

    def forget(self, where: Slice) -> None:
        """Its bytes hold nothing until somebody writes them again."""
        start = self._inside(self.address(where), where.size)
        self.writers[start : start + where.size] = 0
        words = np.full(-(-where.size // 4), self._poison)
        self.bytes[start : start + where.size] = words.view(np.uint8)[: where.size]

    @contextmanager
    def only(self, seen: Iterable[tuple[Slice, str]]) -> Iterator[None]:
        """Makes these slices, with their names, all the memory there is meanwhile."""
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
        """Raises Fault where the last launch wrote to it."""
        start = self._inside(self.address(where), where.size)
        if (self.writers[start : start + where.size] >= self._launch).any():
            raise Fault(f"a store to {name}, which it must only read")

    def _place(self, where: Slice, name: str) -> tuple[int, int, str]:
        """A slice in whole words: XLA swaps the word of an element of 1 or 2 bytes, whatever else
        is in it."""
        start = self._inside(self.address(where), where.size)
        end = -(-(start + where.size) // 4) * 4
        padding = self.writers[start + where.size : end]
        np.maximum(padding, 1, out=padding)
        return start, end - start, name
