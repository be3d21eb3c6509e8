"""Slots of the host's memory and files: who holds them, and which is given up first.

The copies of these tests end at once, or when they are told to; nothing is run.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from test_forgotten_below import SlowSource

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.prefix_cache import PrefixCache
from eagle3_jax.engine.kv.tiers.exports import Export, Exports
from eagle3_jax.engine.kv.tiers.fetches import Fetches
from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.engine.kv.tiers.page_files import write_page
from eagle3_jax.engine.kv.tiers.page_index import PageFile, PageIndex
from eagle3_jax.engine.page_tiers import KeyedPage, KeyedSlot
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.sampling.params import SamplingParams

KEYS = A, B, C, D, E = [bytes([letter]) * 32 for letter in b"abcde"]


class Copies:
    """Copies of pages that end while `arrive`."""

    page_bytes = 1
    arrive = True

    def save_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None: ...
    def stage_pages(self, slots: Sequence[int]) -> None: ...
    def load_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None: ...

    def are_saved(self, slots: Sequence[int]) -> bool:
        return self.arrive

    def are_staged(self, slots: Sequence[int]) -> bool:
        return self.arrive


def tier_with(*keys: bytes, slots: int) -> HostTier:
    tier = HostTier(Copies(), slots)
    for key in keys:
        save(tier, key)
    return tier


def save(tier: HostTier, key: bytes) -> list[int]:
    kept = tier.save([KeyedPage(key, 1)])
    tier.done()
    return kept


def known(tier: HostTier) -> set[bytes]:
    return {key for key in KEYS if tier.knows(key)}


def test_a_slot_that_is_read_is_neither_given_away_nor_freed() -> None:
    tier = tier_with(A, B, slots=2)
    (slot,) = tier.hold([A])
    assert tier.hold([A, D]) == [slot]
    assert save(tier, C) and known(tier) == {A, C}
    tier.hold([C])
    assert save(tier, D) == [] and known(tier) == {A, C}
    tier.forget([A])
    for _ in range(2):
        assert known(tier) == {C} and tier.reserve() is None
        tier.let_go(slot)
    assert tier.reserve() == slot


def test_a_slot_is_held_until_the_page_that_it_fills_is_there() -> None:
    tier, copies = tier_with(A, slots=1), Copies()
    tier._copies, copies.arrive = copies, False
    tier.load([KeyedPage(A, 7), KeyedPage(A, 8)])
    other = [KeyedPage(B, 1)]
    for _ in range(2):
        assert tier.done() == [] and tier.save(other) == []
    copies.arrive = True
    assert tier.done() == [7] and tier.save(other) == []
    assert tier.done() == [8] and tier.save(other) == [1] and known(tier) == {B}


def test_two_programs_of_saves_are_on_their_way_at_a_time() -> None:
    tier = HostTier(Copies(), 4)
    for key, may_begin in ((A, True), (B, True), (C, False)):
        assert tier.can_save == may_begin
        tier.save([KeyedPage(key, 1)])


def test_the_slot_used_longest_ago_goes_first_and_saving_and_loading_are_uses() -> None:
    tier = tier_with(A, B, C, A, D, slots=3)
    assert known(tier) == {A, C, D}
    tier.load([KeyedPage(C, 7)])
    tier.done()
    tier.done()
    save(tier, E)
    save(tier, B)
    assert known(tier) == {C, E, B}


def test_what_comes_badly_or_for_a_forgotten_key_is_not_found() -> None:
    tier, source = HostTier(Copies(), 4), SlowSource()
    fetches = Fetches(tier)
    assert fetches.begin(source, [A, B, C, D], {A, B, C}) == {A, B, C}
    fetches.forget([A])
    source.ended = [(slot, key != C) for key, slot in source.asked]
    fetches.go_on()
    assert known(tier) == {B} and fetches.failed == 1
    assert not fetches.is_busy and not tier._holds.total()


def test_a_prompt_that_runs_again_is_exported_once() -> None:
    pool, tier = PagePool(9, has_tier=True), HostTier(Copies(), 4)
    exports, pages = Exports(tier, pool), pool.take(2) or []
    for page, key in zip(pages, [A, B], strict=True):
        pool.publish(page, key)
    for _ in range(2):
        exports.begin("a", [A, B])
        exports.go_on()
    assert exports.take_ready() == [Export("a", [KeyedSlot(A, 0), KeyedSlot(B, 1)])]
    exports.release("a")
    pool.give_back(pages)
    assert pool.free == pool.total and not tier._holds.total()


@pytest.mark.parametrize(("least", "found"), [(1, 2), (7, 2), (8, 2), (9, 0)])
def test_pages_are_loaded_from_the_least_number_of_tokens_on(least: int, found: int) -> None:
    config = EngineConfig(page_size=4, kv_offloading_least_tokens=least)
    tier = HostTier(Copies(), 4)
    prefixes = PrefixCache(PagePool(9, has_tier=True), config, tier)
    sequence = EngineSequence.of(Request("a", [*range(9)], SamplingParams()), (), 64, None)
    keys = prefixes.prompt_keys(sequence)
    tier.save([KeyedPage(key, 1) for key in keys])
    assert prefixes.find(sequence) == keys[:found]


def test_an_export_ends_where_slots_run_out_and_names_no_slot_as_another_page() -> None:
    """Eight pages have no room in five slots; the four behind them would have."""
    pool, tier = PagePool(20, has_tier=True), HostTier(Copies(), 5)
    exports, keys = Exports(tier, pool), [bytes([number]) * 32 for number in range(12)]
    for page, key in zip(pool.take(len(keys)) or [], keys, strict=True):
        pool.publish(page, key)
    exports.begin("a", keys)
    exports.go_on()
    (export,) = exports.take_ready()
    assert [key for key, _ in export.pages] == keys[: len(export.pages)]
    assert all(tier._key_of[slot] == key for key, slot in export.pages)


def test_files_are_used_whole_and_the_one_read_longest_ago_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed writer leaves nothing under a page's own name."""
    was_there: list[bool] = []
    replace = os.replace

    def noting(source: Path, path: Path) -> None:
        was_there.append(path.exists())
        replace(source, path)

    monkeypatch.setattr(os, "replace", noting)
    page, index = np.zeros(8, np.uint8), PageIndex(tmp_path, limit=250)
    files = [PageFile("0" * 64, key.hex()) for key in (A, B, C)]
    for file, key in zip(files[:2], (A, B), strict=True):
        index.add(file, write_page(index.path(file), bytes(32), key, page))
    assert was_there == [False, False]
    index.use(files[0])
    assert index.add(files[2], 92) == [files[1]]
    assert index.keys_of("1" * 64) == [] and len(index.keys_of("0" * 64)) == 2
    index.close()
