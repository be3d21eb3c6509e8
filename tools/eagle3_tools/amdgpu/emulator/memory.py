"""Global memory of the emulated GPU, with checks of bounds and of data races.

Each byte records its writer: none, something before this launch, or a workgroup of it.
"""

from typing import Any

import numpy as np

BASE = 0x7F00_0000_0000
"""Address of the arena's first byte, so large that no small number is a valid address."""
_UNWRITTEN, _BEFORE = 0, 1
_GUARD = 4096
_BLOCK = 256
"""XLA's allocation granularity in bytes: its kernels may load the bytes after an array, unused."""


class Fault(Exception):
    """The program did something invalid, or something the emulator does not know."""


class GlobalMemory:
    """Buffers in one arena of `size` bytes, which are filled with `poison`.

    `loads_beyond` counts loads that ended after a buffer but in its last block of 256 bytes.
    `loads_unwritten` counts loads of unwritten bytes, if `allow_unwritten` permits them. `writers`
    has the writer of each byte, int32, of which `launch` is the first workgroup.
    """

    allow_unwritten = False
    base = BASE
    writers: Any

    def __init__(self, size: int, poison: int = 0):
        words = (-(-size // 256) * 256 + _GUARD) // 4
        self._poison = np.uint32(poison)
        self.bytes = np.full(words, self._poison).view(np.uint8)
        self.writers = np.zeros(self.bytes.size, np.int32)
        self._top = _GUARD
        self.launch = self._next = _BEFORE + 1
        self.loads_beyond = self.loads_unwritten = 0
        self._starts, self._ends, self._names = np.zeros(0, np.int64), np.zeros(0, np.int64), [""]
        self._names.clear()

    def allocate(self, size: int, name: str) -> int:
        """Allocate an unwritten buffer of `size` bytes and return its address."""
        if self._top + size + _GUARD > self.bytes.size:
            raise MemoryError(f"the arena of {self.bytes.size} bytes has no {size} left for {name}")
        start = self._top
        self._starts = np.append(self._starts, start)
        self._ends = np.append(self._ends, start + size)
        self._names.append(name)
        self._top = -(-(start + size + _GUARD) // 256) * 256
        return BASE + start

    def place(self, array: np.ndarray, name: str) -> int:
        """Allocate a buffer with the contents of `array` and return its address."""
        address = self.allocate(array.nbytes, name)
        self.write(address, array)
        return address

    def write(self, address: int, array: np.ndarray) -> None:
        """Write an array as if before the next launch."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start = self._inside(address, raw.size)
        self.bytes[start : start + raw.size] = raw
        self.writers[start : start + raw.size] = _BEFORE

    def read(
        self, address: int, shape: tuple[int, ...], dtype: Any, *, allow_unwritten: bool = False
    ) -> np.ndarray:
        """Return a copy; raise Fault if a byte was never written."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        start = self._inside(address, size)
        missing = np.count_nonzero(self.writers[start : start + size] == _UNWRITTEN)
        if missing and not allow_unwritten:
            raise Fault(f"{missing} of {size} bytes of {self._name(start)} were never written")
        return self.bytes[start : start + size].copy().view(dtype).reshape(shape)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes and their written state."""
        to, start = self._inside(target, size), self._inside(source, size)
        self.bytes[to : to + size] = self.bytes[start : start + size]
        self.writers[to : to + size] = np.minimum(self.writers[start : start + size], _BEFORE)

    def begin_launch(self, workgroups: int) -> None:
        """Begin a launch of `workgroups`; all earlier writes count as before it."""
        self.launch, self._next = self._next, self._next + workgroups

    def load(self, address: np.ndarray, size: int, count: int, group: np.ndarray) -> np.ndarray:
        """Load `count` elements of `size` bytes from each address [n]: uint32 [count, n].

        `group` [n] has the workgroups that read. Bytes after a buffer in its last block can be
        loaded, and are counted.
        """
        start, beyond = self._loaded_places(address, size * count)
        self.loads_beyond += int(np.count_nonzero(beyond))
        for end in (start, start + size * count - 1):
            unwritten = (self.writers[end] == _UNWRITTEN) & ~beyond
            if self.allow_unwritten:
                self.loads_unwritten += int(np.count_nonzero(unwritten))
            else:
                self._refuse(unwritten, start, "load of bytes that nobody wrote")
            foreign = self._is_foreign(end, group) & ~beyond
            self._refuse(foreign, start, "load of what another workgroup writes in this launch")
        return np.stack([gather(self.bytes, start + size * k, size) for k in range(count)])

    def store(self, address: np.ndarray, values: np.ndarray, size: int, group: np.ndarray) -> None:
        """Store the low `size` bytes of each element of uint32 [count, n]."""
        count = len(values)
        start = self._places(address, size * count, "store")
        for end in (start, start + size * count - 1):
            foreign = self._is_foreign(end, group)
            self._refuse(foreign, start, "store where another workgroup stored in this launch")
        for k, value in enumerate(values):
            scatter(self.bytes, start + size * k, value, size)
            mark(self.writers, start + size * k, self.launch + group, size)

    def exchange(
        self, address: np.ndarray, new: np.ndarray, expected: np.ndarray | None, group: np.ndarray
    ) -> np.ndarray:
        """Compare and swap uint32 one after another, or add; return the old values [n].

        Several workgroups may do this at one place, so it counts as written before the launch.
        """
        start = self._places(address, 4, "atomic access")
        self._refuse(self.writers[start] == _UNWRITTEN, start, "swap of bytes that nobody wrote")
        self._refuse(self._is_foreign(start, group), start, "swap where another workgroup stored")
        found = exchange(self.bytes.view(np.uint32), start >> 2, new, expected)
        mark(self.writers, start, np.full(len(start), _BEFORE), 4)
        return found

    @property
    def bounds(self) -> np.ndarray:
        """Addresses of the start and end of each buffer, and the end for loads: [buffers, 3]."""
        return BASE + np.stack([self._starts, self._ends, self._blocks], 1)

    @property
    def _blocks(self) -> np.ndarray:
        return self._starts + -(-(self._ends - self._starts) // _BLOCK) * _BLOCK

    def describe(self, address: int) -> str:
        """Name the buffer and the byte in it."""
        return self._name(address - BASE)

    def _is_foreign(self, place: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Mark places that another workgroup of this launch wrote."""
        writer = self.writers[place]
        return (writer >= self.launch) & (writer != self.launch + group)

    def _places(self, address: np.ndarray, size: int, what: str) -> np.ndarray:
        start, outside = self._bounds(address, size, self._ends)
        self._refuse(outside, start, f"{what} of {size} bytes outside every buffer")
        return start

    def _loaded_places(self, address: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of loads, and a mask of those that end beyond their buffer."""
        start, beyond = self._bounds(address, size, self._ends)
        if beyond.any():
            outside = self._bounds(address, size, self._blocks)[1]
            self._refuse(outside, start, f"load of {size} bytes outside every buffer")
        return start, beyond

    def _bounds(
        self, address: np.ndarray, size: int, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return places in the arena, and a mask of accesses outside buffers that end at `ends`."""
        start = (address - np.uint64(BASE)).astype(np.int64)
        buffer = np.searchsorted(self._starts, start, "right") - 1
        return start, (buffer < 0) | (start + size > ends[np.maximum(buffer, 0)])

    def _inside(self, address: int, size: int) -> int:
        return int(self._places(np.array([address], np.uint64), size, "access")[0])

    def _refuse(self, wrong: np.ndarray, start: np.ndarray, what: str) -> None:
        if wrong.any():
            at = int(start[np.argmax(wrong)])
            raise Fault(f"{what}, at {BASE + at:#x}, {self._name(at)}")

    def _name(self, start: int) -> str:
        buffer = int(np.searchsorted(self._starts, start, "right")) - 1
        if buffer < 0:
            return "before the first buffer"
        inside = start - int(self._starts[buffer])
        size = int(self._ends[buffer] - self._starts[buffer])
        return f"byte {inside} of {self._names[buffer]}, which has {size}"


def exchange(
    words: np.ndarray, places: np.ndarray, new: np.ndarray, expected: np.ndarray | None
) -> np.ndarray:
    """Swap each word that is the expected one, or add to it, in turn; return the old values."""
    found = np.empty_like(new)
    for k, place in enumerate(places):
        found[k] = words[place]
        if expected is None:
            words[place] += new[k]
        elif found[k] == expected[k]:
            words[place] = new[k]
    return found


def gather(memory: np.ndarray, start: np.ndarray, size: int) -> np.ndarray:
    """Load elements of 1, 2 or 4 bytes, aligned or not, as uint32."""
    if size == 4 and not (start & 3).any():
        return memory.view(np.uint32)[start >> 2]
    if size == 2 and not (start & 1).any():
        return memory.view(np.uint16)[start >> 1].astype(np.uint32)
    parts = [memory[start + k].astype(np.uint32) << np.uint32(8 * k) for k in range(size)]
    return np.bitwise_or.reduce(parts)


def scatter(memory: np.ndarray, start: np.ndarray, value: np.ndarray, size: int) -> None:
    if size == 4 and not (start & 3).any():
        memory.view(np.uint32)[start >> 2] = value
    elif size == 2 and not (start & 1).any():
        memory.view(np.uint16)[start >> 1] = value.astype(np.uint16)
    else:
        for k in range(size):
            memory[start + k] = (value >> np.uint32(8 * k)).astype(np.uint8)


def mark(writers: np.ndarray, start: np.ndarray, who: np.ndarray, size: int) -> None:
    if size > 1 and not (start % size).any():
        writers.reshape(-1, size)[start // size] = who[:, None]
    else:
        for k in range(size):
            writers[start + k] = who
