"""Pages that nobody shall find are not found later, because a copy of them was on its way."""

from collections.abc import Sequence
from typing import Any

import pytest
from driving import drive
from simulated_device import SimulatedRunner, simulated_engine

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.tiers.exports import Export
from eagle3_jax.engine.page_tiers import KeyedSlot, Place
from eagle3_jax.engine.programs.output import RowReport
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.sampler import NOT_FINITE

CONFIG = EngineConfig(0, 256, 2, 4, num_pages=129, prefill_chunk=128, kv_offloading_bytes=100)
PROMPT = [(7 * i * i + i) % 17 for i in range(121)]
PAGES = 30


def exported(name: str = "a") -> Request:
    return Request(name, PROMPT, SamplingParams(max_tokens=1), export_as=name)


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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last chunk began the saving of pages that its report then says nobody may have."""
    engine = simulated_engine(monkeypatch, CONFIG, with_draft=False)
    assert engine.exports is not None
    fails(monkeypatch, engine, "a")
    answer = drive(engine, [exported()])["a"]
    assert answer.finish[0] == "error"
    assert known_below(engine) == 0
    assert engine.exports.take_ready() == [Export("a", [])]
    engine.exports.release("a")
    assert_nothing_lost(engine)


def test_a_prompt_that_is_ready_is_withdrawn_when_its_pages_turn_out_spoiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By another with the same beginning; its slots stay until nobody can be reading them."""
    engine = simulated_engine(monkeypatch, CONFIG, with_draft=False)
    exports = engine.exports
    assert exports is not None
    drive(engine, [exported()])
    assert [len(export.pages) for export in exports.take_ready()] == [PAGES]
    fails(monkeypatch, engine, "b")
    drive(engine, [Request("b", [*PROMPT[:9], 3], SamplingParams(max_tokens=1))])
    assert exports.take_ready() == [Export("a", [])]
    assert exports.num_held == PAGES
    exports.release("a")
    assert_nothing_lost(engine)


def test_a_reset_ends_the_saving_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedRunner, "copy_steps", 10)
    engine = simulated_engine(monkeypatch, CONFIG, with_draft=False)
    assert engine.exports is not None
    engine.add(exported())
    while engine._sequences:
        engine.step()
    engine.step()
    assert engine.exports.is_busy and 0 < known_below(engine) < PAGES
    assert engine.reset_prefix_cache()
    settle(engine)
    assert known_below(engine) == 0
    assert engine.exports.take_ready() == [Export("a", [])]
    engine.exports.release("a")
    assert_nothing_lost(engine)


def test_a_prompt_that_is_released_early_is_saved_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimulatedRunner, "copy_steps", 10)
    engine = simulated_engine(monkeypatch, CONFIG, with_draft=False)
    assert engine.exports is not None
    engine.add(exported())
    while not engine.exports.is_busy:
        engine.step()
    engine.step()
    engine.exports.release("a")
    settle(engine)
    assert engine.exports.take_ready() == []
    assert_nothing_lost(engine)


class SlowSource:
    """Has every page, and brings none before it is told to."""

    place: Place = "remote"

    def __init__(self) -> None:
        self.asked: list[KeyedSlot] = []
        self.ended: list[tuple[int, bool]] = []

    def match(self, keys: Sequence[bytes]) -> int:
        return len(keys)

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        self.asked += pages

    def done(self) -> list[tuple[int, bool]]:
        ended, self.ended = self.ended, []
        return ended


def test_what_comes_after_a_reset_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, source = simulated_engine(monkeypatch, CONFIG, with_draft=False), SlowSource()
    engine.add(Request("a", PROMPT, SamplingParams(max_tokens=1), source=source))
    engine.cancel("a")
    assert len(source.asked) == PAGES
    assert engine.reset_prefix_cache()
    source.ended = [(slot, True) for _, slot in source.asked]
    settle(engine)
    assert known_below(engine) == 0 and engine.stats().failed_fetches == 0
    assert_nothing_lost(engine)
