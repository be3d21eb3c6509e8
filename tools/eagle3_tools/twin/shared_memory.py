"""Memory that the emulated devices share with the program, as the emulator's memory interface."""

import mmap

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory, exchange, gather, scatter


class SharedMemory(GlobalMemory):
    """The program's memory: all devices, then pinned host memory. Bounds are those of the whole.

    XLA allocates buffers out of few large allocations, so neither bounds of buffers nor races
    between workgroups are checked; `make rocm-emulate` checks them. `place` puts the arguments of a
    launch at `scratch`.
    """

    def __init__(self, fd: int, base: int, size: int, scratch: int):
        self._map = mmap.mmap(fd, size)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.base, self._size, self._scratch = base, size, scratch
        self.writers, self.launch = None, 0
        self.loads_beyond = self.loads_unwritten = 0

    @property
    def bounds(self) -> np.ndarray:
        """One buffer, which is all memory."""
        end = self.base + self._size
        return np.array([[self.base, end, end]])

    def place(self, array: np.ndarray, name: str) -> int:
        """Write a launch's arguments to the device's scratch memory and return their address."""
        self.write(self._scratch, array)
        return self._scratch

    def write(self, address: int, array: np.ndarray) -> None:
        """Write an array's bytes."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.view(address, raw.size)[:] = raw

    def view(self, address: int, size: int) -> np.ndarray:
        """Return uint8 [size]; writes to it are writes to memory."""
        return self.bytes[address - self.base : address - self.base + size]

    def describe(self, address: int) -> str:
        """Name the place of a fault."""
        return "outside memory"

    def begin_launch(self, workgroups: int) -> None:
        """Do nothing: races between workgroups are not looked for."""

    def load(self, address: np.ndarray, size: int, count: int, group: np.ndarray) -> np.ndarray:
        """Load `count` elements of `size` bytes from each address [n]: uint32 [count, n]."""
        start = self._places(address, size * count, "load")
        if size == 4 and count > 1 and not (start & 3).any():
            first, words = start >> 2, self.bytes.view(np.uint32)
            return np.stack([words[first + k] for k in range(count)])
        return np.stack([gather(self.bytes, start + size * k, size) for k in range(count)])

    def store(self, address: np.ndarray, values: np.ndarray, size: int, group: np.ndarray) -> None:
        """Store the low `size` bytes of each element of uint32 [count, n]."""
        start = self._places(address, size * len(values), "store")
        for k, value in enumerate(values):
            scatter(self.bytes, start + size * k, value, size)

    def exchange(
        self, address: np.ndarray, new: np.ndarray, expected: np.ndarray | None, group: np.ndarray
    ) -> np.ndarray:
        """Compare and swap uint32 one after another, or add; return the old values [n]."""
        places = self._places(address, 4, "atomic access") >> 2
        return exchange(self.bytes.view(np.uint32), places, new, expected)

    def _places(self, address: np.ndarray, size: int, what: str) -> np.ndarray:
        start = (address - np.uint64(self.base)).astype(np.int64)
        wrong = (start < 0) | (start + size > self._size)
        if wrong.any():
            at = int(address[np.argmax(wrong)])
            raise Fault(f"{what} of {size} bytes outside memory, at {at:#x}")
        return start
