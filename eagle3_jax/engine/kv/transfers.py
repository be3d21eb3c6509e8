"""Pages in transfer through host memory: incoming, outgoing, and written through to the disk.

On any failure a key is missing in host memory and its sequence prefills; pages on the devices are
never affected. A transfer always runs to completion, even if all waiting requests were cancelled.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from eagle3_jax.engine.kv.disk_tier import DiskTier
from eagle3_jax.engine.kv.host_tier import HostTier
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.page_tiers import COPIED_PAGES, KeyedPage, KeyedSlot, PageSource


class IncomingPages:
    """Slots that sources are filling; `failed` counts pages whose transfer failed."""

    def __init__(self, tier: HostTier):
        self._tier = tier
        self._in_flight: dict[int, tuple[PageSource, dict[int, bytes | None]]] = {}
        self.failed = 0

    @property
    def is_busy(self) -> bool:
        """True if a source has slots to fill."""
        return bool(self._in_flight)

    def waits_for(self, source: PageSource | None) -> bool:
        """Return whether `source` is still filling slots."""
        return id(source) in self._in_flight

    def begin(self, source: PageSource, keys: list[bytes], missing: set[bytes]) -> set[bytes]:
        """Start transfers of a source's missing keys while there are slots; return these keys."""
        wanted = [key for key in keys[: source.match(keys)] if key in missing]
        placed: list[KeyedSlot] = []
        for key in wanted:
            if (slot := self._tier.reserve()) is None:
                break
            placed.append(KeyedSlot(key, slot))
        if placed:
            self._in_flight[id(source)] = (source, {slot: key for key, slot in placed})
            source.load(placed)
        return {key for key, _ in placed}

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Discard pages that arrive later for `keys`. With `keys=None`, discard all in flight."""
        for _, slots in self._in_flight.values():
            for slot, key in slots.items():
                if keys is None or key in keys:
                    slots[slot] = None

    def poll(self) -> None:
        """Publish pages whose transfer has finished, and release the slots of those that failed."""
        for name, (source, slots) in list(self._in_flight.items()):
            for slot, ok in source.poll():
                key = slots.pop(slot)
                self._tier.complete(key or b"", slot, ok=ok and key is not None)
                self.failed += not ok
            if not slots:
                del self._in_flight[name]


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


MOST_WAITING = 4096
"""Maximum keys waiting to be written; the oldest are dropped beyond it."""


class WriteThrough:
    """Holds slots only while they are written; a page evicted before its turn is not written."""

    def __init__(self, tier: HostTier, below: DiskTier):
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
        self._waiting |= dict.fromkeys(self._tier.pop_arrived())
        for key in list(self._waiting)[: max(0, len(self._waiting) - MOST_WAITING)]:
            del self._waiting[key]
        while self._waiting and self._below.can_save:
            key = next(iter(self._waiting))
            del self._waiting[key]
            if self._below.match([key]) == 0:
                self._below.save([KeyedSlot(key, slot) for slot in self._tier.acquire([key])])
