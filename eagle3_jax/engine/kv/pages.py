"""Who holds each KV page, and what the pages that nobody holds still contain.

Host bookkeeping; page 0 is the device's scratch page.
"""

from collections.abc import Sequence
from itertools import islice

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.engine.kv.events import KVEventLog


class PagePool:
    """Reference counts of pages, and the keys of those whose contents are worth finding again.

    A page nobody holds is free. If it has a key it keeps its contents until empty pages run out;
    then the one that was given back first goes first.
    A page freed while rounds are in flight may be handed out at once: programs run in the order
    they were dispatched, so the new owner's writes come after any the old owner still makes.
    """

    def __init__(self, num_pages: int, events: KVEventLog | None = None, *, has_tier: bool = False):
        """events: gets what can't be found any more; who publishes says what can be. has_tier: free
        pages with a key are kept unsaved until `mark_saved`."""
        self.total = num_pages - 1
        self.num_lost = 0
        """Pages whose contents went while there was a tier that had not saved them."""
        self._events = events
        self._has_tier = has_tier
        self._empty = [page for page in range(num_pages) if page != SCRATCH_PAGE][::-1]
        self._idle: dict[int, None] = {}  # free pages with a key, in the order they came back
        self._unsaved: dict[int, None] = {}  # the same, of those that the tier has not
        self._saved: set[int] = set()
        self._awaited: set[int] = set()
        self._holders = [0] * num_pages
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return self.disposable + len(self._unsaved)

    @property
    def disposable(self) -> int:
        """Of these, how many have nothing that would be lost."""
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
            if page not in self._key_of:
                self._empty.append(page)
            elif self._has_tier and page not in self._saved:
                self._unsaved[page] = None
            else:
                self._idle[page] = None

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
            if page in self._key_of:
                self._forget(page)

    def forget_all(self) -> None:
        """Nobody shall find what any page contains."""
        self._empty += [*self._idle, *self._unsaved]
        for kept in (self._idle, self._unsaved, self._key_of, self._page_of, self._saved):
            kept.clear()
        if self._events is not None:
            self._events.cleared()

    def keys_of(self, pages: Sequence[int]) -> list[bytes]:
        """The keys of those of these pages that have one."""
        return [self._key_of[page] for page in pages if page in self._key_of]

    def knows(self, key: bytes) -> bool:
        """Whether a page has this key."""
        return key in self._page_of

    @property
    def has_unsaved(self) -> bool:
        """Whether there are free pages that the tier has not."""
        return bool(self._unsaved)

    def oldest_unsaved(self, count: int) -> list[tuple[bytes, int]]:
        """Keys and pages of up to `count` free pages that the tier has not, the oldest first."""
        return [(self._key_of[page], page) for page in islice(self._unsaved, count)]

    def mark_saved(self, pages: Sequence[int]) -> None:
        """The tier has these free pages now."""
        for page in pages:
            del self._unsaved[page]
            self._idle[page] = None
            self._saved.add(page)

    def expect(self, page: int, key: bytes) -> None:
        """A page that was taken will hold what the tier has under this key; one more hold on it
        until it does."""
        self.publish(page, key)
        self._saved.add(page)
        self._awaited.add(page)
        self._holders[page] += 1

    def arrived(self, page: int) -> None:
        """An expected page holds its contents in every program dispatched from now on."""
        self._awaited.discard(page)
        self.give_back([page])

    def awaits(self, pages: Sequence[int]) -> bool:
        """Whether one of these pages is expected and not there."""
        return not self._awaited.isdisjoint(pages)

    def count_known(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, have a page."""
        unknown = (index for index, key in enumerate(keys) if key not in self._page_of)
        return next(unknown, len(keys))

    def share(self, keys: Sequence[bytes]) -> list[int]:
        """The pages of these keys, each held once more."""
        pages = [self._page_of[key] for key in keys]
        for page in pages:
            self._idle.pop(page, None)
            self._unsaved.pop(page, None)
            self._holders[page] += 1
        return pages

    def _evict(self) -> int:
        kept = self._idle or self._unsaved
        self.num_lost += kept is self._unsaved
        page = next(iter(kept))
        del kept[page]
        self._forget(page)
        return page

    def _forget(self, page: int) -> None:
        key = self._key_of.pop(page)
        del self._page_of[key]
        self._saved.discard(page)
        if self._events is not None:
            self._events.removed(key, "GPU")
