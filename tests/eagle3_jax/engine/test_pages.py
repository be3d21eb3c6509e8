"""Holds, keys and eviction of pages against a model that only counts, and the events they tell."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.kv.events import (
    AllCleared,
    KVEventLog,
    PagesRemoved,
    PagesStored,
)
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.prefix_cache import PrefixCache
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams

NUM_PAGES = 7
keys = st.integers(0, 5).map(lambda number: bytes([number]))


class PageTraffic(RuleBasedStateMachine):
    """Owners take, share, publish and give back pages in any order.

    contents: the key of each page that still has one. idle: those of them that nobody holds, in the
    order in which they were given back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.owned: list[list[int]] = []
        self.contents: dict[int, bytes] = {}
        self.idle: list[int] = []

    @property
    def held(self) -> list[int]:
        return [page for pages in self.owned for page in pages]

    @rule(count=st.integers(0, 5))
    def take(self, count: int) -> None:
        free = NUM_PAGES - 1 - len(set(self.held))
        lost = self.idle[: max(0, count - (free - len(self.idle)))]
        pages = self.pool.allocate(count)
        assert (pages is None) == (count > free)
        if pages is None:
            return
        assert len(set(pages)) == count and not set(pages) & set(self.held)
        assert set(pages) & set(self.contents) == set(lost), "the oldest idle pages go, no others"
        for page in lost:
            self.idle.remove(page)
            del self.contents[page]
        self.owned.append(pages)

    @precondition(lambda self: self.owned)
    @rule(index=st.integers(0, 50))
    def release(self, index: int) -> None:
        pages = self.owned.pop(index % len(self.owned))
        self.pool.release(pages)
        gone = [page for page in reversed(pages) if page not in self.held]
        self.idle += [page for page in gone if page in self.contents]

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 50), key=keys)
    def publish(self, index: int, key: bytes) -> None:
        page = self.held[index % len(self.held)]
        if page not in self.contents:
            self.pool.publish(page, key)
            if key not in self.contents.values():
                self.contents[page] = key

    @rule(wanted=st.lists(keys, max_size=4, unique=True))
    def share(self, wanted: list[bytes]) -> None:
        page_of = {key: page for page, key in self.contents.items()}
        known = next((i for i, key in enumerate(wanted) if key not in page_of), len(wanted))
        assert self.pool.count_known(wanted) == known
        pages = self.pool.acquire(wanted[:known])
        assert pages == [page_of[key] for key in wanted[:known]]
        self.idle = [page for page in self.idle if page not in pages]
        self.owned.append(pages)

    @invariant()
    def no_page_is_lost_and_scratch_is_nobodys(self) -> None:
        assert self.pool.free == NUM_PAGES - 1 - len(set(self.held))
        assert SCRATCH_PAGE not in self.held


TestPageTraffic = PageTraffic.TestCase
TestPageTraffic.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


def test_returning_a_page_twice_is_noticed() -> None:
    pool = PagePool(3)
    pages = pool.allocate(1)
    assert pages is not None
    pool.release(pages)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(pages)


def test_a_page_is_free_once_its_last_holder_returns_it() -> None:
    pool = PagePool(3)
    pages = pool.allocate(1)
    assert pages is not None
    pool.publish(pages[0], b"a")
    assert pool.acquire([b"a"]) == pages
    for free in (1, 2):
        pool.release(pages)
        assert pool.free == free


def test_a_page_that_waits_to_be_saved_is_not_free_once_it_is_shared() -> None:
    pool = PagePool(4, has_tier=True)
    pages = pool.allocate(1)
    assert pages is not None
    pool.publish(pages[0], b"a")
    pool.release(pages)
    assert pool.free == 3 and pool.oldest_unsaved(8) == [(b"a", pages[0])]
    assert pool.acquire([b"a"]) == pages
    assert pool.free == 2 and not pool.has_unsaved


def filled(events: KVEventLog, salt: str = "") -> tuple[PagePool, PrefixCache, Sequence]:
    """A pool of three pages of 4 tokens, all held by one sequence of 13 tokens."""
    config, pages = EngineConfig(page_size=4, max_model_len=16), PagePool(4, events)
    request = Request("a", list(range(13)), SamplingParams(), salt)
    sequence = Sequence.of(request, (), 16, None)
    sequence.pages.extend(pages.allocate(3) or [])
    return pages, PrefixCache(pages, config, events=events), sequence


def test_pages_are_described_by_their_tokens_and_the_one_after_them() -> None:
    log = KVEventLog()
    _, cache, sequence = filled(log, "mine")
    cache.publish(sequence, 12)
    keys = tuple(sequence.page_keys)
    assert log.drain() == [
        PagesStored(keys, None, tuple(range(12)), (4, 8, 12), 4, "mine", "GPU"),
    ]
    assert log.drain() == []


def test_evictions_forgetting_and_resets_are_told_in_their_order() -> None:
    log = KVEventLog()
    pages, cache, sequence = filled(log)
    cache.publish(sequence, 12)
    first, middle, last = sequence.page_keys
    log.drain()
    pages.forget(sequence.pages[:1])
    pages.release(sequence.pages)
    pages.allocate(2)
    pages.forget_all()
    assert log.drain() == [
        PagesRemoved((first,), "GPU"),
        PagesRemoved((last,), "GPU"),
        AllCleared(),
    ]
    assert pages.count_known([middle]) == 0
