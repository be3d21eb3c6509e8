"""Outgoing pages: prompts' pages held in host memory until another engine has them."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.engine.page_tiers import COPIED_PAGES, KeyedPage, KeyedSlot


class PromptPages(NamedTuple):
    """A prompt's pages, in order, under the name by which they are requested."""

    name: str
    pages: list[KeyedSlot]


class _Outgoing(NamedTuple):
    """State of one export: keys of the pages, held pages yet to be saved, and held slots."""

    keys: list[bytes]
    left: deque[KeyedPage]
    slots: list[int]


class OutgoingPages:
    """Saves prompts' pages into slots, oldest prompt first, and holds these slots."""

    def __init__(self, tier: HostTier, pages: PagePool):
        self._tier, self._pages = tier, pages
        self._by_name: dict[str, _Outgoing] = {}
        self._saving: deque[str] = deque()
        self._ready: list[PromptPages] = []

    @property
    def is_busy(self) -> bool:
        """True if pages wait to be saved."""
        return bool(self._saving)

    @property
    def num_held(self) -> int:
        """Number of held slots."""
        return sum(len(kept.slots) for kept in self._by_name.values())

    def begin(self, name: str, keys: Sequence[bytes]) -> None:
        """Export the pages of these keys, as filled by the programs dispatched so far.

        A prompt that runs again after preemption is exported already.
        """
        if name not in self._by_name:
            left = deque(map(KeyedPage, keys, self._pages.acquire(keys)))
            self._by_name[name] = _Outgoing(list(keys), left, [])
            self._saving.append(name)

    def poll(self) -> None:
        """Start as many saves as may be in flight."""
        while self._saving:
            name = self._saving[0]
            kept = self._by_name[name]
            if kept.left and not self._tier.can_save:
                return
            self._save_some(kept)
            if not kept.left:
                self._saving.popleft()
                self._ready.append(PromptPages(name, list(map(KeyedSlot, kept.keys, kept.slots))))

    def pop_ready(self) -> list[PromptPages]:
        """Return newly readable exports; a withdrawn export comes, perhaps again, without pages."""
        ready, self._ready = self._ready, []
        return ready

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Withdraw exports with one of these keys. With `keys=None`, withdraw all exports.

        Slots stay held until `release`, as a reader may use them; other pages are never saved.
        """
        for name, kept in self._by_name.items():
            if keys is None or not {*keys}.isdisjoint(kept.keys):
                self._give_up(kept)
                kept.keys.clear()
                self._ready = [export for export in self._ready if export.name != name]
                if name not in self._saving:
                    self._ready.append(PromptPages(name, []))

    def release(self, name: str) -> None:
        """Release an export that is no longer needed; ignore unknown names."""
        if (kept := self._by_name.pop(name, None)) is None:
            return
        if name in self._saving:
            self._saving.remove(name)
        self._give_up(kept)
        for slot in kept.slots:
            self._tier.release_slot(slot)

    def _save_some(self, kept: _Outgoing) -> None:
        """Save up to one program's pages; give up the rest if slots run out."""
        batch = [kept.left.popleft() for _ in range(min(COPIED_PAGES, len(kept.left)))]
        self._tier.save(batch)
        slots = self._tier.acquire([key for key, _ in batch])
        kept.slots.extend(slots)
        self._pages.release([page for _, page in batch])
        if len(slots) < len(batch):
            self._give_up(kept)

    def _give_up(self, kept: _Outgoing) -> None:
        """Release the pages that are not saved yet."""
        self._pages.release([page for _, page in kept.left])
        kept.left.clear()
