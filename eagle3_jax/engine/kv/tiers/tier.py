"""What a tier is to the scheduler, what lies below one, and what they need to copy pages.

A page is named by its key (`engine/kv/prefix_cache.py`), which stands for its contents, target and
draft. Copies run beside the rounds: whoever begins one asks later whether it is done.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

COPIED_PAGES = 8
"""Pages that one program copies."""


class KeyedPage(NamedTuple):
    """A page of the cache, and the key of what it holds or is to hold."""

    key: bytes
    page: int


class KeyedSlot(NamedTuple):
    """A slot of the host's memory, and the key of the page it holds or is to hold."""

    key: bytes
    slot: int


Place = Literal["disk", "remote"]
"""Where pages that come into the host's memory were: a directory, another server."""


class TierRoom(NamedTuple):
    """How full a tier is, in pages. tier: a field of `TokensByTier`."""

    tier: str
    pages: int
    total: int


class Tier(Protocol):
    """Keeps pages by their keys; the oldest unused go when it is full."""

    def match(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, it has."""
        ...

    def save(self, pages: Sequence[KeyedPage]) -> list[int]:
        """Begins to keep these pages as programs dispatched so far leave them; which of them, where
        there is no room for all."""
        ...

    def load(self, pages: Sequence[KeyedPage]) -> None:
        """Begins to fill these pages, whose keys it has; it keeps them meanwhile."""
        ...

    def done(self) -> list[int]:
        """Goes on with what has been begun; the pages that programs dispatched from now on find
        filled, each once."""
        ...

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Nobody shall find these keys, None: any key."""
        ...

    @property
    def can_save(self) -> bool:
        """Whether a save may begin; few go on at a time, each has a copy on the device."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether something begun is not done."""
        ...

    @property
    def rooms(self) -> tuple[TierRoom, ...]:
        """How full it is, and tiers below it."""
        ...


class PageSource(Protocol):
    """Where pages can be brought into the host's memory from. Threads of its own copy them."""

    @property
    def place(self) -> Place:
        """What it is."""
        ...

    def match(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, it has."""
        ...

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        """Begins to fill these slots, whose keys it has or had."""
        ...

    def done(self) -> list[tuple[int, bool]]:
        """Slots whose copies have ended since it was last asked, and whether they went well; a slot
        that was to be filled holds nothing otherwise."""
        ...


class LowerTier(PageSource, Protocol):
    """A source that keeps what it is given."""

    def save(self, pages: Sequence[KeyedSlot]) -> None:
        """Begins to keep what these slots hold, which stays there until it is `done`."""
        ...

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Nobody shall find these keys, None: any key."""
        ...

    @property
    def can_save(self) -> bool:
        """Whether a save may begin; few go on at a time."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a save is under way."""
        ...


class PageBytes(Protocol):
    """The bytes of the host's slots, of all devices: uint8[page_bytes]. Any thread may ask."""

    @property
    def page_bytes(self) -> int:
        """Of a slot."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """Of all that gives a page's bytes their meaning: engines of one share pages."""
        ...

    def bytes_of(self, slot: int) -> np.ndarray:
        """What a slot holds; waits for a copy that is under way."""
        ...

    def fill(self, slot: int, data: np.ndarray) -> None:
        """Puts a page into a slot."""
        ...


class PageCopies(Protocol):
    """Copies between pages of the cache and numbered slots of the host's memory, at most
    COPIED_PAGES at a time (`eagle3_jax.engine.programs.runner.Runner`)."""

    @property
    def page_bytes(self) -> int:
        """Of a slot."""
        ...

    def save_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None: ...

    def stage_pages(self, slots: Sequence[int]) -> None: ...

    def load_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None: ...

    def are_saved(self, slots: Sequence[int]) -> bool: ...

    def are_staged(self, slots: Sequence[int]) -> bool: ...
