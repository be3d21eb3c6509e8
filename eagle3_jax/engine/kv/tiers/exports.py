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


class _Kept(NamedTuple):
    """keys: of a prompt's pages. left: those to be saved, held. slots: held too."""

    keys: list[bytes]
    left: deque[KeyedPage]
    slots: list[int]


class Exports:
    """Saves pages of prompts into slots, the oldest prompt first, and holds these slots."""

    def __init__(self, tier: HostTier, pages: PagePool):
        self._tier, self._pages = tier, pages
        self._kept: dict[str, _Kept] = {}
        self._saving: deque[str] = deque()
        self._ready: list[Export] = []

    @property
    def is_busy(self) -> bool:
        """Whether pages wait to be saved."""
        return bool(self._saving)

    @property
    def num_held(self) -> int:
        """Slots held."""
        return sum(len(kept.slots) for kept in self._kept.values())

    def begin(self, name: str, keys: Sequence[bytes]) -> None:
        """Keeps the pages of these keys; programs dispatched so far fill them. A prompt that runs
        again because it was preempted is kept already."""
        if name not in self._kept:
            left = deque(map(KeyedPage, keys, self._pages.share(keys)))
            self._kept[name] = _Kept(list(keys), left, [])
            self._saving.append(name)

    def go_on(self) -> None:
        """Saves as much as may be on its way at a time."""
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
        """Those that can be read since this was last asked; without pages where these were
        forgotten, which may be after they were ready."""
        ready, self._ready = self._ready, []
        return ready

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Nobody shall be given prompts with one of these keys, None: any prompt. What is not saved
        never is; slots are held until the name is released, because somebody may be reading them.
        """
        for name, kept in self._kept.items():
            if keys is None or not {*keys}.isdisjoint(kept.keys):
                self._give_up(kept)
                kept.keys.clear()
                self._ready = [export for export in self._ready if export.name != name]
                if name not in self._saving:
                    self._ready.append(Export(name, []))

    def release(self, name: str) -> None:
        """Nobody will ask for this one any more. Unknown names are ignored."""
        if (kept := self._kept.pop(name, None)) is None:
            return
        if name in self._saving:
            self._saving.remove(name)
        self._give_up(kept)
        for slot in kept.slots:
            self._tier.let_go(slot)

    def _save_some(self, kept: _Kept) -> None:
        """A program's worth; where there is no slot for all of it, the rest is given up."""
        batch = [kept.left.popleft() for _ in range(min(COPIED_PAGES, len(kept.left)))]
        self._tier.save(batch)
        slots = self._tier.hold([key for key, _ in batch])
        kept.slots.extend(slots)
        self._pages.give_back([page for _, page in batch])
        if len(slots) < len(batch):
            self._give_up(kept)

    def _give_up(self, kept: _Kept) -> None:
        """What is left is not saved."""
        self._pages.give_back([page for _, page in kept.left])
        kept.left.clear()
