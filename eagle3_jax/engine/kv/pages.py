"""Who holds each KV page, and what the pages that nobody holds still contain.

Host bookkeeping; page 0 is the device's scratch page.
"""

from collections.abc import Sequence

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.engine.kv.events import KVEventLog


class PagePool:
    """Reference counts of pages, and the keys of those whose contents are worth finding again.

    A page nobody holds is free. If it has a key it keeps its contents until empty pages run out;
    then the one that was given back first goes first.
    A page freed while rounds are in flight may be handed out at once: programs run in the order
    they were dispatched, so the new owner's writes come after any the old owner still makes.
    """

    def __init__(self, num_pages: int, events: KVEventLog | None = None):
        """events: gets what can't be found any more; who publishes says what can be."""
        self.total = num_pages - 1
        self._events = events
        self._empty = [page for page in range(num_pages) if page != SCRATCH_PAGE][::-1]
        self._idle: dict[int, None] = {}  # free pages with a key, in the order they came back
        self._holders = [0] * num_pages
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return len(self._empty) + len(self._idle)

    def take(self, count: int) -> list[int] | None:
        """`count` page ids to write to, or None (and nothing taken) when there are not enough."""
        if count > self.free:
            return None
        pages = [self._empty.pop() if self._empty else self._evict() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        """Ends one hold on each page. A chain comes back end first: it is also evicted from there,
        because nothing behind a lost page can be found."""
        for page in reversed(pages):
            assert self._holders[page] > 0, "a page was returned twice"
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._key_of:
                self._idle[page] = None
            else:
                self._empty.append(page)

    def publish(self, page: int, key: bytes) -> bool:
        """Names the final contents of a held page. False, and nothing happens, where the key is
        taken: it keeps its page."""
        assert self._holders[page] > 0, "only a page that somebody holds has known contents"
        if key in self._page_of:
            return False
        self._page_of[key], self._key_of[page] = page, key
        return True

    def forget(self, pages: Sequence[int]) -> None:
        """Nobody shall find what these held pages contain."""
        for page in pages:
            key = self._key_of.pop(page, None)
            if key is not None:
                del self._page_of[key]
                self._note_removed(key)

    def forget_all(self) -> None:
        """Nobody shall find what any page contains."""
        self._empty += self._idle
        self._idle.clear()
        self._key_of.clear()
        self._page_of.clear()
        if self._events is not None:
            self._events.cleared()

    def count_known(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, have a page."""
        unknown = (index for index, key in enumerate(keys) if key not in self._page_of)
        return next(unknown, len(keys))

    def share(self, keys: Sequence[bytes]) -> list[int]:
        """The pages of these keys, each held once more."""
        pages = [self._page_of[key] for key in keys]
        for page in pages:
            self._idle.pop(page, None)
            self._holders[page] += 1
        return pages

    def _evict(self) -> int:
        page = next(iter(self._idle))
        key = self._key_of.pop(page)
        del self._idle[page], self._page_of[key]
        self._note_removed(key)
        return page

    def _note_removed(self, key: bytes) -> None:
        if self._events is not None:
            self._events.removed(key, "GPU")
