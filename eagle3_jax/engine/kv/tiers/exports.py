"""Prompts' pages that are kept in the host's memory for another engine, until it has them."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.engine.kv.tiers.tier import COPIED_PAGES, KeyedPage, KeyedSlot


class Export(NamedTuple):
    """Pages under the name that they are asked for by: of the prompt, from its first on."""

    name: str
    pages: list[KeyedSlot]


class _Saving(NamedTuple):
    name: str
    keys: list[bytes]
    left: deque[KeyedPage]


class Exports:
    """Saves pages of prompts into slots, the oldest prompt first, and holds these slots."""

    def __init__(self, tier: HostTier, pages: PagePool):
        self._tier, self._pages = tier, pages
        self._saving: deque[_Saving] = deque()
        self._held: dict[str, list[int]] = {}
        self._ready: list[Export] = []

    @property
    def is_busy(self) -> bool:
        """Whether pages wait to be saved."""
        return bool(self._saving)

    @property
    def num_held(self) -> int:
        """Slots held."""
        return sum(map(len, self._held.values()))

    def begin(self, name: str, keys: Sequence[bytes]) -> None:
        """Keeps the pages of these keys; programs dispatched so far fill them."""
        pages = self._pages.share(keys)
        left = deque(map(KeyedPage, keys, pages))
        self._saving.append(_Saving(name, list(keys), left))

    def go_on(self) -> None:
        """Saves as much as may be on its way at a time."""
        while self._saving and (self._tier.can_save or not self._saving[0].left):
            name, keys, left = self._saving[0]
            batch = [left.popleft() for _ in range(min(COPIED_PAGES, len(left)))]
            if batch:
                self._tier.save(batch)
                slots = self._tier.hold([key for key, _ in batch])
                self._held.setdefault(name, []).extend(slots)
                self._pages.give_back([page for _, page in batch])
                if len(slots) < len(batch):
                    self._pages.give_back([page for _, page in left])
                    left.clear()
            if not left:
                self._saving.popleft()
                held = self._held.setdefault(name, [])
                self._ready.append(Export(name, list(map(KeyedSlot, keys, held))))

    def take_ready(self) -> list[Export]:
        """Those that can be read since this was last asked."""
        ready, self._ready = self._ready, []
        return ready

    def release(self, name: str) -> None:
        """Nobody will ask for this one any more. Unknown names are ignored."""
        for slot in self._held.pop(name, ()):
            self._tier.let_go(slot)
