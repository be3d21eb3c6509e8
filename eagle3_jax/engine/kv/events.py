"""What changes in the prefix index, in order, for whoever keeps a copy of it: a router, mostly.

Replayed from the start, the events name exactly the pages that a prompt can be found on. An engine
writes them only where it was given a log.
"""

from dataclasses import dataclass, field
from typing import Literal

Medium = Literal["GPU", "CPU", "STORAGE"]
"""Where pages lie, in vLLM's words: the device (whatever it is), host memory, a disk."""


@dataclass(frozen=True)
class PagesStored:
    """Neighbouring pages of one sequence, first to last, can be found from now on.

    keys: one a page. parent_key: that of the page in front of the first; None at a prompt's
    beginning. token_ids: page_tokens a page. lookahead_token_ids: of each page the token after it,
    which its key covers too. Neither is there where pages came from another medium, under the keys
    they had. salt: of the request, "" for none; only a prompt's first key covers it, and by that
    the others.
    """

    keys: tuple[bytes, ...]
    parent_key: bytes | None
    token_ids: tuple[int, ...]
    lookahead_token_ids: tuple[int, ...]
    page_tokens: int
    salt: str
    medium: Medium


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
class KVEventLog:
    """Events since they were last taken; of the engine's thread."""

    _events: list[KVEvent] = field(default_factory=list)

    def add(self, event: KVEvent) -> None:
        """Notes a change that has just been made."""
        self._events.append(event)

    def take(self) -> list[KVEvent]:
        """Hands the events over, oldest first, and starts anew."""
        events, self._events = self._events, []
        return events
