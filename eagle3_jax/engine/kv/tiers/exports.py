"""Outgoing pages: prompts' pages held in host memory until another engine has them."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.engine.page_tiers import COPIED_PAGES, KeyedPage, KeyedSlot


class Export(NamedTuple):
    """A prompt's pages, in order, under the name by which they are requested."""

    name: str
    pages: list[KeyedSlot]


class _Kept(NamedTuple):
    """State of one export: keys of the pages, held pages yet to be saved, and held slots."""

    keys: list[bytes]
    left: deque[KeyedPage]
    slots: list[int]


class Exports:
    """Saves prompts' pages into slots, oldest prompt first, and holds these slots."""

    def __init__(self, tier: HostTier, pages: PagePool):
        self._tier, self._pages = tier, pages
        self._kept: dict[str, _Kept] = {}
        self._saving: deque[str] = deque()
        self._ready: list[Export] = []

    @property
    def is_busy(self) -> bool:
        """True if pages wait to be saved."""
        return bool(self._saving)

    @property
    def num_held(self) -> int:
        """Number of held slots."""
        return sum(len(kept.slots) for kept in self._kept.values())

    def begin(self, name: str, keys: Sequence[bytes]) -> None:
        """Export the pages of these keys, as filled by the programs dispatched so far.

        A prompt that runs again after preemption is exported already.
        """
        if name not in self._kept:
            left = deque(map(KeyedPage, keys, self._pages.share(keys)))
            self._kept[name] = _Kept(list(keys), left, [])
            self._saving.append(name)

    def go_on(self) -> None:
        """Start as many saves as may be in flight."""
        while self._saving:
            name = self._saving[0]
            kept = self._kept[name]
            if kept.left and not self._tier.can_save:
                return
            self._save_some(kept)
            if not kept.left:
                self._saving.popleft()
                self._ready.append(Export(name, list(map(KeyedSlot, kept.keys, kept.slots))))

    def take_ready(self) -> list[Export]:
        """Return newly readable exports; a withdrawn export comes, perhaps again, without pages."""
        ready, self._ready = self._ready, []
        return ready

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Withdraw exports with one of these keys. With `keys=None`, withdraw all exports.

        Slots stay held until `release`, as a reader may use them; other pages are never saved.
        """
        for name, kept in self._kept.items():
            if keys is None or not {*keys}.isdisjoint(kept.keys):
                self._give_up(kept)
                kept.keys.clear()
                self._ready = [export for export in self._ready if export.name != name]
                if name not in self._saving:
                    self._ready.append(Export(name, []))

    def release(self, name: str) -> None:
        """Release an export that is no longer needed; ignore unknown names."""
        if (kept := self._kept.pop(name, None)) is None:
            return
        if name in self._saving:
            self._saving.remove(name)
        self._give_up(kept)
        for slot in kept.slots:
            self._tier.let_go(slot)

    def _save_some(self, kept: _Kept) -> None:
        """Save up to one program's pages; give up the rest if slots run out."""
        batch = [kept.left.popleft() for _ in range(min(COPIED_PAGES, len(kept.left)))]
        self._tier.save(batch)
        slots = self._tier.hold([key for key, _ in batch])
        kept.slots.extend(slots)
        self._pages.give_back([page for _, page in batch])
        if len(slots) < len(batch):
            self._give_up(kept)

    def _give_up(self, kept: _Kept) -> None:
        """Release the pages that are not saved yet."""
        self._pages.give_back([page for _, page in kept.left])
        kept.left.clear()
