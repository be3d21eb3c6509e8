"""Ordered changes of the prefix index, for copies of it, such as a router's.

Replayed from the start, the events name exactly the pages in which a prompt can be found. An engine
writes them only if it was given a log.
"""

from array import array
from dataclasses import dataclass
from typing import Literal, NamedTuple

Medium = Literal["GPU", "CPU", "STORAGE"]
"""Places of pages in vLLM's words: the device of any kind, host memory, a disk."""


class ImageInPage(NamedTuple):
    """SHA-256 of an image's file and processing, and its start relative to the page."""

    digest: bytes
    offset: int


@dataclass(frozen=True)
class PagesStored:
    """Consecutive pages of one sequence can be found from now on.

    `keys` are one per page; `parent_key` is that of the page before, None at a prompt's start.
    There are page_tokens `token_ids` per page and one of `lookahead_token_ids`, which the key
    covers too. The request's `salt`, or "", is covered by the first key, and by the others through
    it. `images` are those that each page's key covers; () if there are none at all.
    """

    keys: tuple[bytes, ...]
    parent_key: bytes | None
    token_ids: tuple[int, ...]
    lookahead_token_ids: tuple[int, ...]
    page_tokens: int
    salt: str
    medium: Medium
    images: tuple[tuple[ImageInPage, ...], ...] = ()


@dataclass(frozen=True)
class PagesRemoved:
    """These pages can no longer be found in this medium."""

    keys: tuple[bytes, ...]
    medium: Medium


@dataclass(frozen=True)
class AllCleared:
    """No page can be found any more, in any medium."""


KVEvent = PagesStored | PagesRemoved | AllCleared


@dataclass
class _Page:
    """Contents that a key names, at 4 bytes per token, and the media that have them."""

    parent_key: bytes | None
    tokens: "array[int]"
    lookahead: int
    salt: str
    media: set[Medium]
    images: tuple[ImageInPage, ...]


class KVEventLog:
    """Events since the last `drain`. Used by the engine's thread only.

    The log knows the contents of a key while some medium has its page, so that code which moves
    pages only names keys.
    """

    def __init__(self) -> None:
        self._events: list[KVEvent] = []
        self._pages: dict[bytes, _Page] = {}

    def stored(self, event: PagesStored) -> None:
        """Record pages that have been written."""
        self._events.append(event)
        size, parent = event.page_tokens, event.parent_key
        for index, key in enumerate(event.keys):
            tokens = array("i", event.token_ids[index * size : (index + 1) * size])
            lookahead = event.lookahead_token_ids[index]
            images = event.images[index] if event.images else ()
            page = _Page(parent, tokens, lookahead, event.salt, {event.medium}, images)
            known = self._pages.setdefault(key, page)
            known.media.add(event.medium)
            parent = key

    def copied(self, key: bytes, medium: Medium) -> None:
        """Record a copy of a page in another medium; without tokens if it predates the log."""
        page = self._pages.get(key)
        if page is None:
            self._events.append(PagesStored((key,), None, (), (), 0, "", medium))
            return
        page.media.add(medium)
        tokens, size = tuple(page.tokens), len(page.tokens)
        event = PagesStored(
            (key,),
            page.parent_key,
            tokens,
            (page.lookahead,),
            size,
            page.salt,
            medium,
            (page.images,) if page.images else (),
        )
        self._events.append(event)

    def removed(self, key: bytes, medium: Medium) -> None:
        """Record that a medium has lost a page."""
        self._events.append(PagesRemoved((key,), medium))
        page = self._pages.get(key)
        if page is not None:
            page.media.discard(medium)
            if not page.media:
                del self._pages[key]

    def cleared(self) -> None:
        self._events.append(AllCleared())
        self._pages.clear()

    def drain(self) -> list[KVEvent]:
        """Return the events, oldest first, and clear them."""
        events, self._events = self._events, []
        return events
