"""Local memory (LDS) of workgroups: checked bounds, and no conflict between two barriers.

Two waves conflict where one writes what the other reads or writes before both have met at a
barrier: then the order is the hardware's, and the result is luck.
"""

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault, gather, scatter

_MANY = 63
"""Stands for several waves that read; a workgroup has 16 at most."""


class LocalMemory:
    """`groups` times `size` bytes. granule: bytes that conflict with each other, the smallest
    access of the kernel."""

    def __init__(self, groups: int, size: int, granule: int, poison: int):
        self.size = -(-max(size, 4) // 16) * 16
        self.limit = size
        pattern = np.full(groups * self.size // 4, poison, np.uint32)
        self.bytes = pattern.view(np.uint8)
        self._granule = granule
        self._readers = np.zeros(self.bytes.size // granule, np.int32)
        self._writers = np.zeros(self.bytes.size // granule, np.int32)
        self._epoch = np.ones(groups, np.int32)

    def barrier(self, group: int) -> None:
        """All waves of the group have met: what they did before cannot conflict any more."""
        self._epoch[group] += 1

    def load(
        self, place: np.ndarray, size: int, count: int, group: np.ndarray, wave: np.ndarray
    ) -> np.ndarray:
        """`count` elements of `size` bytes from each place [n] of its group: uint32 [count, n]."""
        start = self._start(place, size * count, group)
        me = self._epoch[group] * 64 + wave
        for granule in self._granules(start, size * count):
            self._refuse(self._writers[granule], me, place, "reads what another wave wrote")
            last = self._readers[granule]
            others = (last >> 6 == me >> 6) & (last != me)
            self._readers[granule] = np.where(others, me | _MANY, me)
        return np.stack([gather(self.bytes, start + size * k, size) for k in range(count)])

    def store(
        self, place: np.ndarray, values: np.ndarray, size: int, group: np.ndarray, wave: np.ndarray
    ) -> None:
        """Writes uint32 [count, n], of each the low `size` bytes."""
        start = self._start(place, size * len(values), group)
        me = self._epoch[group] * 64 + wave
        for granule in self._granules(start, size * len(values)):
            self._refuse(self._writers[granule], me, place, "overwrites what another wave wrote")
            self._refuse(self._readers[granule], me, place, "overwrites what another wave reads")
            self._writers[granule] = me
        for k, value in enumerate(values):
            scatter(self.bytes, start + size * k, value, size)

    def _start(self, place: np.ndarray, size: int, group: np.ndarray) -> np.ndarray:
        place = place.astype(np.int64)
        if len(place) and int(place.max()) + size > self.limit:
            raise Fault(f"LDS access at byte {int(place.max())} of {self.limit}")
        return place + group.astype(np.int64) * self.size

    def _granules(self, start: np.ndarray, size: int) -> list[np.ndarray]:
        first = start // self._granule
        return [first + k for k in range(max(1, size // self._granule))]

    def _refuse(self, last: np.ndarray, me: np.ndarray, place: np.ndarray, what: str) -> None:
        wrong = (last >> 6 == me >> 6) & (last != me)
        if wrong.any():
            at = int(np.argmax(wrong))
            who, other = int(me[at]) & 63, int(last[at]) & 63
            said = "several" if other == _MANY else other
            raise Fault(f"wave {who} {what} ({said}) since the last barrier: LDS byte {place[at]}")
