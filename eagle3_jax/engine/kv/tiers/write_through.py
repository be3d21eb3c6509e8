"""Write-through of pages from host memory to the tier below, oldest first."""

from collections.abc import Sequence

from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.engine.page_tiers import KeyedSlot, LowerTier

MOST_WAITING = 4096
"""Maximum keys waiting to be written; the oldest are dropped beyond it."""


class WriteThrough:
    """Holds slots only while they are written; a page evicted before its turn is not written."""

    def __init__(self, tier: HostTier, below: LowerTier):
        self._tier, self._below = tier, below
        self._waiting: dict[bytes, None] = {}

    @property
    def is_busy(self) -> bool:
        """True if pages wait or are being written."""
        return bool(self._waiting) or self._below.is_busy

    def poll(self) -> None:
        """Finish writes and start others."""
        for slot, _ in self._below.poll():
            self._tier.release_slot(slot)
        self._take(self._tier.pop_arrived())
        while self._waiting and self._below.can_save:
            key = next(iter(self._waiting))
            del self._waiting[key]
            if self._below.match([key]) == 0:
                self._below.save([KeyedSlot(key, slot) for slot in self._tier.acquire([key])])

    def _take(self, keys: Sequence[bytes]) -> None:
        self._waiting |= dict.fromkeys(keys)
        for key in list(self._waiting)[: max(0, len(self._waiting) - MOST_WAITING)]:
            del self._waiting[key]
