"""Slots of the host's memory and files: which are given up first, and what is found no more.

The copies of these tests end at once, or when they are told to; nothing is run.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import drive
from simulated_device import SimulatedRunner, simulated_engine

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.host_tier import HostTier
from eagle3_jax.engine.kv.page_files import PageFile, PageIndex, write_page
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.prefix_cache import PrefixCache
from eagle3_jax.engine.kv.transfers import IncomingPages, OutgoingPages, PromptPages
from eagle3_jax.engine.page_tiers import KeyedPage, KeyedSlot, PageOrigin
from eagle3_jax.engine.programs.runner import RowReport
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.sampler import NOT_FINITE

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
    tier.poll()
    return kept


def known(tier: HostTier) -> set[bytes]:
    return {key for key in KEYS if tier.knows(key)}


def test_a_slot_that_is_read_is_neither_given_away_nor_freed() -> None:
    tier = tier_with(A, B, slots=2)
    (slot,) = tier.acquire([A])
    assert tier.acquire([A, D]) == [slot]
    assert save(tier, C) and known(tier) == {A, C}
    tier.acquire([C])
    assert save(tier, D) == [] and known(tier) == {A, C}
    tier.forget([A])
    for _ in range(2):
        assert known(tier) == {C} and tier.reserve() is None
        tier.release_slot(slot)
    assert tier.reserve() == slot


def test_a_slot_is_held_until_the_page_that_it_fills_is_there() -> None:
    tier, copies = tier_with(A, slots=1), Copies()
    tier._copies, copies.arrive = copies, False
    tier.load([KeyedPage(A, 7), KeyedPage(A, 8)])
    other = [KeyedPage(B, 1)]
    for _ in range(2):
        assert tier.poll() == [] and tier.save(other) == []
    copies.arrive = True
    assert tier.poll() == [7] and tier.save(other) == []
    assert tier.poll() == [8] and tier.save(other) == [1] and known(tier) == {B}


def test_two_programs_of_saves_are_on_their_way_at_a_time() -> None:
    tier = HostTier(Copies(), 4)
    for key, may_begin in ((A, True), (B, True), (C, False)):
        assert tier.can_save == may_begin
        tier.save([KeyedPage(key, 1)])


def test_the_slot_used_longest_ago_goes_first_and_saving_and_loading_are_uses() -> None:
    tier = tier_with(A, B, C, A, D, slots=3)
    assert known(tier) == {A, C, D}
    tier.load([KeyedPage(C, 7)])
    tier.poll()
    tier.poll()
    save(tier, E)
    save(tier, B)
    assert known(tier) == {C, E, B}


def test_what_comes_badly_or_for_a_forgotten_key_is_not_found() -> None:
    tier, source = HostTier(Copies(), 4), SlowSource()
    incoming = IncomingPages(tier)
    assert incoming.begin(source, [A, B, C, D], {A, B, C}) == {A, B, C}
    incoming.forget([A])
    source.ended = [(slot, key != C) for key, slot in source.asked]
    incoming.poll()
    assert known(tier) == {B} and incoming.failed == 1
    assert not incoming.is_busy and not tier._holds.total()


def test_a_prompt_that_runs_again_is_exported_once() -> None:
    pool, tier = PagePool(9, has_tier=True), HostTier(Copies(), 4)
    outgoing, pages = OutgoingPages(tier, pool), pool.allocate(2) or []
    for page, key in zip(pages, [A, B], strict=True):
        pool.publish(page, key)
    for _ in range(2):
        outgoing.begin("a", [A, B])
        outgoing.poll()
    assert outgoing.pop_ready() == [PromptPages("a", [KeyedSlot(A, 0), KeyedSlot(B, 1)])]
    outgoing.release("a")
    pool.release(pages)
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
    outgoing, keys = OutgoingPages(tier, pool), [bytes([number]) * 32 for number in range(12)]
    for page, key in zip(pool.allocate(len(keys)) or [], keys, strict=True):
        pool.publish(page, key)
    outgoing.begin("a", keys)
    outgoing.poll()
    (export,) = outgoing.pop_ready()
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


CONFIG = EngineConfig(0, 256, 2, 4, num_pages=129, prefill_chunk=128, kv_offloading_bytes=100)
PROMPT = [(7 * i * i + i) % 17 for i in range(121)]
PAGES = 30


def exported(name: str = "a") -> Request:
    return Request(name, PROMPT, SamplingParams(max_tokens=1), export_as=name)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return simulated_engine(monkeypatch, CONFIG, with_draft=False)


@pytest.fixture
def outgoing(engine: Engine) -> OutgoingPages:
    assert engine.outgoing is not None
    return engine.outgoing


def fails(monkeypatch: pytest.MonkeyPatch, engine: Engine, name: str) -> None:
    """The logits of this request's first token are not finite."""
    runner: Any = engine._runner
    prefill = runner.prefill

    def failing(chunks: Any, *inputs: Any) -> list[RowReport]:
        reports = prefill(chunks, *inputs)
        is_failing = chunks[0].sequence.request.request_id == name
        return [RowReport([NOT_FINITE], 0)] if is_failing and reports else reports

    monkeypatch.setattr(runner, "prefill", failing)


def settle(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def known_below(engine: Engine) -> int:
    tier = engine._replicas.first.tier
    assert tier is not None
    return len(tier._slot_of)


def assert_nothing_lost(engine: Engine) -> None:
    tier, stats = engine._replicas.first.tier, engine.stats()
    assert tier is not None and not tier._holds.total() and not tier.is_busy
    assert stats.free_pages == stats.total_pages


def test_a_spoiled_prompts_pages_are_neither_kept_nor_handed_out(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, outgoing: OutgoingPages
) -> None:
    """Its last chunk began the saving of pages that its report then says nobody may have."""
    fails(monkeypatch, engine, "a")
    answer = drive(engine, [exported()])["a"]
    assert answer.finish[0] == "error"
    assert known_below(engine) == 0
    assert outgoing.pop_ready() == [PromptPages("a", [])]
    outgoing.release("a")
    assert_nothing_lost(engine)


def test_a_prompt_that_is_ready_is_withdrawn_when_its_pages_turn_out_spoiled(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, outgoing: OutgoingPages
) -> None:
    """By another with the same beginning; its slots stay until nobody can be reading them."""
    drive(engine, [exported()])
    assert [len(export.pages) for export in outgoing.pop_ready()] == [PAGES]
    fails(monkeypatch, engine, "b")
    drive(engine, [Request("b", [*PROMPT[:9], 3], SamplingParams(max_tokens=1))])
    assert outgoing.pop_ready() == [PromptPages("a", [])]
    assert outgoing.num_held == PAGES
    outgoing.release("a")
    assert_nothing_lost(engine)


def test_a_reset_ends_the_saving_of_prompts(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, outgoing: OutgoingPages
) -> None:
    monkeypatch.setattr(SimulatedRunner, "copy_steps", 10)
    engine.add(exported())
    while engine._sequences:
        engine.step()
    engine.step()
    assert outgoing.is_busy and 0 < known_below(engine) < PAGES
    assert engine.reset_prefix_cache()
    settle(engine)
    assert known_below(engine) == 0
    assert outgoing.pop_ready() == [PromptPages("a", [])]
    outgoing.release("a")
    assert_nothing_lost(engine)


def test_a_prompt_that_is_released_early_is_saved_no_further(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, outgoing: OutgoingPages
) -> None:
    monkeypatch.setattr(SimulatedRunner, "copy_steps", 10)
    engine.add(exported())
    while not outgoing.is_busy:
        engine.step()
    engine.step()
    outgoing.release("a")
    settle(engine)
    assert outgoing.pop_ready() == []
    assert_nothing_lost(engine)


class SlowSource:
    """Has every page, and brings none before it is told to."""

    origin: PageOrigin = "remote"

    def __init__(self) -> None:
        self.asked: list[KeyedSlot] = []
        self.ended: list[tuple[int, bool]] = []

    def match(self, keys: Sequence[bytes]) -> int:
        return len(keys)

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        self.asked += pages

    def poll(self) -> list[tuple[int, bool]]:
        ended, self.ended = self.ended, []
        return ended


def test_what_comes_after_a_reset_is_not_found(engine: Engine) -> None:
    source = SlowSource()
    engine.add(Request("a", PROMPT, SamplingParams(max_tokens=1), source=source))
    engine.cancel("a")
    assert len(source.asked) == PAGES
    assert engine.reset_prefix_cache()
    source.ended = [(slot, True) for _, slot in source.asked]
    settle(engine)
    assert known_below(engine) == 0 and engine.stats().failed_fetches == 0
    assert_nothing_lost(engine)
