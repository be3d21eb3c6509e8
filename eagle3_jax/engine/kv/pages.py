"""Reference counts of KV pages on the host, and the cached contents of free pages.

Page 0 is the device's scratch page.
"""

from collections.abc import Sequence
from itertools import islice

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.engine.kv.events import KVEventLog


class PagePool:
    """Reference counts of pages, and keys of pages with reusable contents.

    A page without holders is free. If it has a key, it keeps its contents until empty pages run
    out; the page that was freed first is evicted first. A page freed while rounds are in flight may
    be reused at once: programs run in dispatch order, so the new owner's writes come after the old
    one's.
    """

    def __init__(self, num_pages: int, events: KVEventLog | None = None, *, has_tier: bool = False):
        """`events` receives removals. With `has_tier` pages stay unsaved until `mark_saved`."""
        self.total = num_pages - 1
        self.num_lost = 0
        """Pages whose contents were lost before the tier had saved them."""
        self._events = events
        self._has_tier = has_tier
        self._empty = [page for page in range(num_pages) if page != SCRATCH_PAGE][::-1]
        self._idle: dict[int, None] = {}  # free pages with a key, in the order they were freed
        self._unsaved: dict[int, None] = {}  # such pages that the tier does not have
        self._saved: set[int] = set()
        self._awaited: set[int] = set()
        self._holders = [0] * num_pages
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Number of pages without holders."""
        return self.disposable + len(self._unsaved)

    @property
    def disposable(self) -> int:
        """Number of free pages whose reuse loses nothing."""
        return len(self._empty) + len(self._idle)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` pages to write to, or return None and take nothing if there are too few."""
        if count > self.free:
            return None
        pages = [self._empty.pop() if self._empty else self._evict() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Release one hold on each page, the end of the chain first.

        It is then evicted first too, because nothing after a lost page can be found.
        """
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
        """Assign a key to a held page's final contents; return False if another page has it."""
        assert self._holders[page] > 0, "only a page that somebody holds has known contents"
        if key in self._page_of:
            return False
        self._page_of[key], self._key_of[page] = page, key
        return True

    def forget(self, pages: Sequence[int]) -> None:
        for page in pages:
            if page in self._key_of:
                self._forget(page)

    def forget_all(self) -> None:
        self._empty += [*self._idle, *self._unsaved]
        for kept in (self._idle, self._unsaved, self._key_of, self._page_of, self._saved):
            kept.clear()
        if self._events is not None:
            self._events.cleared()

    def keys_of(self, pages: Sequence[int]) -> list[bytes]:
        """Return the keys of those of these pages that have one."""
        return [self._key_of[page] for page in pages if page in self._key_of]

    def knows(self, key: bytes) -> bool:
        return key in self._page_of

    @property
    def has_unsaved(self) -> bool:
        """True if there are free pages that the tier does not have."""
        return bool(self._unsaved)

    def oldest_unsaved(self, count: int) -> list[tuple[bytes, int]]:
        """Return keys and pages of up to `count` free pages that the tier lacks, oldest first."""
        return [(self._key_of[page], page) for page in islice(self._unsaved, count)]

    def mark_saved(self, pages: Sequence[int]) -> None:
        """Mark free pages as saved in the tier."""
        for page in pages:
            del self._unsaved[page]
            self._idle[page] = None
            self._saved.add(page)

    def reserve_for_load(self, page: int, key: bytes) -> None:
        """Reserve a page for contents that the tier will load, with an extra hold until then."""
        self.publish(page, key)
        self._saved.add(page)
        self._awaited.add(page)
        self._holders[page] += 1

    def mark_loaded(self, page: int) -> None:
        """Mark an expected page as filled in every program dispatched from now on."""
        self._awaited.discard(page)
        self.release([page])

    def are_loading(self, pages: Sequence[int]) -> bool:
        """Return whether one of these pages is still being loaded."""
        return not self._awaited.isdisjoint(pages)

    def count_known(self, keys: Sequence[bytes]) -> int:
        """Return the number of leading keys that have a page."""
        unknown = (index for index, key in enumerate(keys) if key not in self._page_of)
        return next(unknown, len(keys))

    def acquire(self, keys: Sequence[bytes]) -> list[int]:
        """Return the pages of these keys, each with one more hold."""
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
