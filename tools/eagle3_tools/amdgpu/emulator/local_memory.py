"""Local memory (LDS) of workgroups, with checks of bounds and of data races.

Two waves conflict if one writes bytes that the other reads or writes and no barrier separates them:
the result then depends on the order in hardware.
"""

import re
from collections.abc import Iterable

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault, gather, scatter

_BITS = re.compile(r"ds_\w+_[biu](8|16)\b")
_MANY = 63
"""Stands for several reading waves; a workgroup has at most 16."""


def granule_of(names: Iterable[str]) -> int:
    """Return the smallest access of a kernel's instructions in bytes, the unit of conflicts."""
    found = (_BITS.match(name) for name in names)
    return min([4, *(int(bits[1]) // 8 for bits in found if bits)])


class LocalMemory:
    """`groups` times `size` bytes. A conflict concerns `granule` bytes, the smallest access."""

    def __init__(self, groups: int, size: int, granule: int, poison: int):
        self.size = -(-max(size, 4) // 16) * 16
        self.limit = size
        pattern = np.full(groups * self.size // 4, poison, np.uint32)
        self.bytes = pattern.view(np.uint8)
        self.granule = granule
        self._readers = np.zeros(self.bytes.size // granule, np.int32)
        self._writers = np.zeros(self.bytes.size // granule, np.int32)
        self._epoch = np.ones(groups, np.int32)

    def barrier(self, group: int) -> None:
        """Note that all waves of the group met: earlier accesses no longer conflict."""
        self._epoch[group] += 1

    def load(
        self, place: np.ndarray, size: int, count: int, group: np.ndarray, wave: np.ndarray
    ) -> np.ndarray:
        """Load `count` elements of `size` bytes from each place [n]: uint32 [count, n]."""
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
        """Store the low `size` bytes of each element of uint32 [count, n]."""
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
        first = start // self.granule
        return [first + k for k in range(max(1, size // self.granule))]

    def _refuse(self, last: np.ndarray, me: np.ndarray, place: np.ndarray, what: str) -> None:
        wrong = (last >> 6 == me >> 6) & (last != me)
        if wrong.any():
            at = int(np.argmax(wrong))
            who, other = int(me[at]) & 63, int(last[at]) & 63
            said = "several" if other == _MANY else other
            raise Fault(f"wave {who} {what} ({said}) since the last barrier: LDS byte {place[at]}")
