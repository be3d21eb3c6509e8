"""Memory tiers of KV pages: interfaces of page sources and of the copies that tiers need.

A page is named by its key (`engine/kv/prefix_cache.py`), which identifies its contents for target
and draft. Copies overlap with rounds; the caller polls for their completion.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np

COPIED_PAGES = 8
"""Pages copied by one program."""


class KeyedPage(NamedTuple):
    """A page of the cache, and the key of its present or future contents."""

    key: bytes
    page: int


class KeyedSlot(NamedTuple):
    """A slot of host memory, and the key of its present or future contents."""

    key: bytes
    slot: int


PageOrigin = Literal["disk", "remote"]
"""Origin of pages that come into host memory: a directory or another server."""


class TierOccupancy(NamedTuple):
    """Occupancy of a tier in pages. `tier` is a field of `TokensByTier`."""

    tier: str
    pages: int
    total: int


class TokensByTier(NamedTuple):
    """Tokens found on the devices, in host memory, on disk and on another machine."""

    device: int = 0
    host: int = 0
    disk: int = 0
    remote: int = 0

    @property
    def total(self) -> int:
        return sum(self)

    @property
    def below(self) -> int:
        """Tokens of all tiers except the devices' memory, to which they were copied."""
        return self.total - self.device

    def plus(self, other: "TokensByTier") -> "TokensByTier":
        return TokensByTier(*map(sum, zip(self, other, strict=True)))


NO_TOKENS = TokensByTier()


class PageSource(Protocol):
    """An origin from which its own threads copy pages into host memory."""

    @property
    def origin(self) -> PageOrigin:
        """Kind of the origin."""
        ...

    def match(self, keys: Sequence[bytes]) -> int:
        """Return the number of leading keys that it has."""
        ...

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        """Start filling these slots, whose keys it has or had."""

    def poll(self) -> list[tuple[int, bool]]:
        """Return newly completed copies as (slot, success); slots of failed copies are empty."""
        ...


class PageBytes(Protocol):
    """Bytes of host slots over all devices, uint8[page_bytes]. Thread-safe."""

    @property
    def page_bytes(self) -> int:
        """Bytes per slot."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """Hash of all that gives a page's bytes meaning; engines with equal hashes share pages."""
        ...

    def bytes_of(self, slot: int) -> np.ndarray:
        """Return a slot's bytes; wait for a copy in flight."""
        ...

    def fill(self, slot: int, data: np.ndarray) -> None:
        """Write a page into a slot."""


class PageCopies(Protocol):
    """Copies of up to COPIED_PAGES between cache pages and numbered host slots (see `Runner`)."""

    @property
    def page_bytes(self) -> int:
        """Bytes per slot."""
        ...

    def save_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None: ...

    def stage_pages(self, slots: Sequence[int]) -> None: ...

    def load_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None: ...

    def are_saved(self, slots: Sequence[int]) -> bool: ...

    def are_staged(self, slots: Sequence[int]) -> bool: ...
