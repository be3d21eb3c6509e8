"""Host tier: pages in slots of host memory, and copies in flight."""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.page_tiers import COPIED_PAGES, KeyedPage, PageCopies, TierOccupancy

MOST_SAVES, MOST_LOADS = 2, 2
"""Copy programs in flight at a time, each with a buffer on the devices."""


class Load(NamedTuple):
    """Pages to fill from staged slots."""

    pages: list[int]
    slots: list[int]


class HostTier:
    """Pages by key in a fixed number of slots, with LRU eviction.

    A slot with a load in flight is not reused. `events` receives stored and removed pages.
    """

    def __init__(self, copies: PageCopies, slots: int, events: KVEventLog | None = None):
        self._copies, self._events = copies, events
        self._arrived: dict[bytes, None] = {}
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        self._key_of: dict[int, bytes] = {}
        self._free = list(range(slots))[::-1]
        self._saves: deque[list[int]] = deque()
        self._wanted: deque[tuple[int, int]] = deque()
        self._loads: deque[Load] = deque()
        self._holds: Counter[int] = Counter()
        self._total = slots

    @property
    def occupancy(self) -> TierOccupancy:
        return TierOccupancy("host", len(self._slot_of), self._total)

    @property
    def can_save(self) -> bool:
        """True if a save may begin; few may be in flight, each with a buffer on the device."""
        return len(self._saves) < MOST_SAVES

    @property
    def is_busy(self) -> bool:
        return bool(self._saves or self._wanted or self._loads)

    def match(self, keys: Sequence[bytes]) -> int:
        """Return the number of leading keys in the tier."""
        unknown = (index for index, key in enumerate(keys) if key not in self._slot_of)
        return next(unknown, len(keys))

    def knows(self, key: bytes) -> bool:
        return key in self._slot_of

    def save(self, pages: Sequence[KeyedPage]) -> list[int]:
        """Start saving pages and return those that are kept; known keys become most recently used.

        A page is not kept if loads hold every slot.
        """
        kept: list[int] = []
        placed: list[tuple[int, int]] = []
        for key, page in pages:
            if key in self._slot_of:
                self._slot_of.move_to_end(key)
                kept.append(page)
            elif (slot := self._empty_slot()) is not None:
                self._name(slot, key)
                placed.append((page, slot))
        for start in range(0, len(placed), COPIED_PAGES):
            page_ids, slots = map(list, zip(*placed[start:][:COPIED_PAGES], strict=True))
            self._copies.save_pages(page_ids, slots)
            self._saves.append(slots)
        return kept + [page for page, _ in placed]

    def load(self, pages: Sequence[KeyedPage]) -> None:
        """Start filling these pages, whose keys it has; they cannot be evicted meanwhile."""
        for key, page in pages:
            slot = self._slot_of[key]
            self._slot_of.move_to_end(key)
            self._holds[slot] += 1
            self._wanted.append((page, slot))

    def poll(self) -> list[int]:
        """Poll copies; return, once, the pages filled in programs dispatched from now on."""
        while self._saves and self._copies.are_saved(self._saves[0]):
            self._arrived |= dict.fromkeys(
                self._key_of[slot] for slot in self._saves.popleft() if slot in self._key_of
            )
        filled: list[int] = []
        while self._loads and self._copies.are_staged(self._loads[0].slots):
            load = self._loads.popleft()
            self._copies.load_pages(*load)
            for slot in load.slots:
                self.release_slot(slot)
            filled += load.pages
        while self._wanted and len(self._loads) < MOST_LOADS and self._begin_load():
            pass
        return filled

    def pop_arrived(self) -> list[bytes]:
        """Return, oldest first, keys of pages here that arrived since the last call."""
        arrived, self._arrived = list(self._arrived), {}
        return arrived

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Remove these keys; loads in flight still finish. With `keys=None`, remove all keys."""
        for key in list(self._slot_of) if keys is None else keys:
            slot = self._slot_of.pop(key, None)
            if slot is not None:
                self._arrived.pop(key, None)
                del self._key_of[slot]
                self._free_unless_held(slot)
                if self._events is not None:
                    self._events.removed(key, "CPU")

    def acquire(self, keys: Sequence[bytes]) -> list[int]:
        """Return the slots of the leading known keys, each with one more hold."""
        slots = [self._slot_of[key] for key in keys[: self.match(keys)]]
        self._holds.update(slots)
        return slots

    def release_slot(self, slot: int) -> None:
        """Release one hold on a slot."""
        self._holds[slot] -= 1
        if slot not in self._key_of:
            self._free_unless_held(slot)

    def reserve(self) -> int | None:
        """Return a held slot for a transfer to fill, or None if all are held."""
        if (slot := self._empty_slot()) is not None:
            self._holds[slot] += 1
        return slot

    def complete(self, key: bytes, slot: int, *, ok: bool) -> None:
        """Store a reserved slot under its key, or release it if the transfer failed."""
        if ok and key not in self._slot_of:
            self._name(slot, key)
            self._arrived[key] = None
        self.release_slot(slot)

    def _empty_slot(self) -> int | None:
        """Return a free slot, else the least recently used one, or None if all are held."""
        if not self._free:
            oldest = (k for k, slot in self._slot_of.items() if not self._holds[slot])
            if (victim := next(oldest, None)) is None:
                return None
            self.forget([victim])
        return self._free.pop()

    def _name(self, slot: int, key: bytes) -> None:
        self._slot_of[key], self._key_of[slot] = slot, key
        if self._events is not None:
            self._events.copied(key, "CPU")

    def _begin_load(self) -> bool:
        """Stage the next slots; a slot in flight for another page is staged again afterwards."""
        on_their_way = {slot for load in self._loads for slot in load.slots}
        pages: dict[int, int] = {}
        while self._wanted and len(pages) < COPIED_PAGES:
            page, slot = self._wanted[0]
            if slot in on_their_way or slot in pages:
                break
            pages[slot] = page
            self._wanted.popleft()
        if pages:
            self._copies.stage_pages(list(pages))
            self._loads.append(Load(list(pages.values()), list(pages)))
        return bool(pages)

    def _free_unless_held(self, slot: int) -> None:
        if not self._holds[slot]:
            self._free.append(slot)
