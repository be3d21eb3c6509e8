"""What changes in the prefix index, in order, for whoever keeps a copy of it: a router, mostly.

Replayed from the start, the events name exactly the pages that a prompt can be found on. An engine
writes them only where it was given a log.
"""

from array import array
from dataclasses import dataclass
from typing import Literal, NamedTuple

Medium = Literal["GPU", "CPU", "STORAGE"]
"""Where pages lie, in vLLM's words: the device (whatever it is), host memory, a disk."""


class ImageInPage(NamedTuple):
    """An image that positions of a page, or the one after it, are of: the SHA-256 of its file and
    processing, and where it begins, counted from the page's first position."""

    digest: bytes
    offset: int


@dataclass(frozen=True)
class PagesStored:
    """Neighbouring pages of one sequence, first to last, can be found from now on.

    keys: one a page. parent_key: that of the page in front of the first; None at a prompt's
    beginning. token_ids: page_tokens a page. lookahead_token_ids: of each page the token after it,
    which its key covers too. salt: of the request, "" for none; a prompt's first key covers it, and
    by that the others. images: those that each page's key covers; () where there are none at all.
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
    """These pages can't be found in this medium any more."""

    keys: tuple[bytes, ...]
    medium: Medium


@dataclass(frozen=True)
class AllCleared:
    """No page can be found any more, in any medium."""


KVEvent = PagesStored | PagesRemoved | AllCleared


@dataclass
class _Page:
    """What a key stands for, and which media have it: 4 bytes a token."""

    parent_key: bytes | None
    tokens: "array[int]"
    lookahead: int
    salt: str
    media: set[Medium]
    images: tuple[ImageInPage, ...]


class KVEventLog:
    """Events since they were last taken; of the engine's thread.

    It knows what each key stands for as long as some medium has its page, so that whoever moves
    pages need only name their keys.
    """

    def __init__(self) -> None:
        self._events: list[KVEvent] = []
        self._pages: dict[bytes, _Page] = {}

    def stored(self, event: PagesStored) -> None:
        """Pages have been written."""
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
        """A page that another medium has is in this one too; one that was there before the log
        began is told without its tokens."""
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
        """A medium has a page no more."""
        self._events.append(PagesRemoved((key,), medium))
        page = self._pages.get(key)
        if page is not None:
            page.media.discard(medium)
            if not page.media:
                del self._pages[key]

    def cleared(self) -> None:
        """No medium has any page."""
        self._events.append(AllCleared())
        self._pages.clear()

    def take(self) -> list[KVEvent]:
        """Hands the events over, oldest first, and starts anew."""
        events, self._events = self._events, []
        return events
