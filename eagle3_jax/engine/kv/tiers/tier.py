"""What a tier is to the scheduler, and what it needs to copy pages.

A page is named by its key (`engine/kv/prefix_cache.py`), which stands for its contents, target and
draft. Copies run beside the rounds: whoever begins one asks later whether it is done.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

COPIED_PAGES = 8
"""Pages that one program copies."""


class KeyedPage(NamedTuple):
    """A page of the cache, and the key of what it holds or is to hold."""

    key: bytes
    page: int


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
