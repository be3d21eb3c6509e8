"""Counters, on a device that accepts what the test says."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from driving import drive
from simulated_device import SimulatedRunner, simulated_engine

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams

CONFIG = EngineConfig(3, max_model_len=40, max_num_seqs=2, page_size=4, num_pages=21)


def engine_accepting(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], config: EngineConfig = CONFIG
) -> Engine:
    """Every round accepts the next of these counts, as far as there is room."""
    engine = simulated_engine(monkeypatch, config)
    script: Any = iter(counts)
    runner: Any = engine._runner
    assert isinstance(runner, SimulatedRunner)
    monkeypatch.setattr(runner, "agreeing", lambda slot: next(script))
    return engine


def test_accept_length_is_one_and_the_mean_of_the_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """15 tokens: one by prefill, then rounds of 4, 1, 3, 2 and 4; the last had room for 3."""
    engine = engine_accepting(monkeypatch, [3, 0, 2, 1, 3])
    answer = drive(engine, [Request("a", [1], SamplingParams(max_tokens=15))])["a"]
    assert answer.accepted == [3, 0, 2, 1, 3]
    stats = engine.stats()
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (5, 15, 9)
    assert stats.num_accepted_per_pos == (4, 3, 2)
    assert 1 + stats.num_accepted_tokens / stats.num_drafts == 14 / 5
    assert (stats.prompt_tokens, stats.generation_tokens) == (1, 15)


def test_a_round_without_room_for_drafts_is_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens are left after the prefill's: a round of one draft; then a round of none."""
    engine = engine_accepting(monkeypatch, [0, 0])
    drive(engine, [Request("a", [1], SamplingParams(max_tokens=3))])
    stats = engine.stats()
    assert (stats.num_drafts, stats.num_draft_tokens, stats.generation_tokens) == (1, 1, 3)


def test_load_is_what_is_held_now(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_accepting(monkeypatch, [0] * 100)
    for name in "abc":
        engine.add(Request(name, [ord(name) % 17] * 5, SamplingParams(max_tokens=20)))
    engine.step()
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    # Five known tokens and two rounds of four rows: four pages each.
    assert (stats.free_pages, stats.total_pages) == (12, 20)
    assert stats.kv_cache_usage == pytest.approx(8 / 20)
    for name in "abc":
        engine.cancel(name)
    assert engine.stats().free_pages == 20
    assert engine.stats().num_running == engine.stats().num_waiting == 0


def test_who_waits_for_pages_from_below_is_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_accepting(monkeypatch, [0] * 100)
    for name in "abcd":
        engine.add(Request(name, [ord(name) % 17] * 5, SamplingParams(max_tokens=20)))
    engine.step()
    assert (engine.stats().num_waiting, engine.stats().num_deferred) == (2, 0)
    waits = SimpleNamespace(waits_for=lambda source: True, failed=0)
    monkeypatch.setattr(engine._replicas.first, "fetches", waits)
    assert (engine.stats().num_waiting, engine.stats().num_deferred) == (2, 2)


def test_a_request_starts_once_when_its_prompt_first_runs_preempted_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 10 pages of 4 hold one answer of 25 tokens, not two.
    engine = engine_accepting(monkeypatch, [0] * 200, replace(CONFIG, num_pages=11))
    for name in "abc":
        engine.add(Request(name, [ord(name) % 17] * 5, SamplingParams(max_tokens=20)))
    started = []
    while engine.has_work:
        waiting = engine.stats().num_waiting
        engine.step()
        started += engine.started
        assert len(engine.started) <= waiting
    assert started == ["a", "b", "c"]
    assert engine.stats().num_preemptions > 0
