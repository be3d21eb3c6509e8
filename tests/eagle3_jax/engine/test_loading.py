"""Prompts that come again, all at once, with their pages in the host's memory: nobody waits for
ever, however slow the copies and whoever leaves meanwhile."""

from dataclasses import dataclass

import pytest
from driving import Answer, drive
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import VOCAB, SimulatedRunner, plain_answer, simulated_pair
from test_shared_prefixes import prefilled

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.scheduler import Scheduler
from eagle3_jax.engine.sequence import Status
from eagle3_jax.sampling.params import SamplingParams

LONGEST = 32
STATES = {"all of several slots", "a part of what is asked for", "one that is cancelled"}
"""What loads are to be met in."""


@dataclass(frozen=True)
class Returning:
    """requests: asked one by one, then all at once with copies that take so many looks."""

    config: EngineConfig
    requests: list[Request]
    copy_steps: int
    cancel_at: dict[str, int]


@st.composite
def returning(draw: st.DrawFn) -> Returning:
    """The pool holds one of the prompts, or a few; the host's memory all of them, or a few."""
    page_size = draw(st.sampled_from([1, 2, 4]))
    own, lengths = -(-LONGEST // page_size), st.integers(8, 24)
    requests = [
        Request(
            f"{user}",
            [user, *((7 * user * i + i * i) % VOCAB for i in range(draw(lengths)))],
            SamplingParams(max_tokens=draw(st.integers(1, 7)), seed=user),
        )
        for user in range(draw(st.integers(2, 6)))
    ]
    config = EngineConfig(
        num_speculative_tokens=draw(st.integers(0, 3)),
        max_model_len=LONGEST,
        max_num_seqs=draw(st.integers(1, 4)),
        page_size=page_size,
        num_pages=1 + own + draw(st.integers(0, 2 * own)),
        prefill_chunk=draw(st.integers(2, 8)),
        exact=draw(st.booleans()),
        kv_offloading_bytes=draw(st.sampled_from([own // 2, own, 6 * own])),
    )
    names = st.sampled_from([request.request_id for request in requests])
    steps = st.dictionaries(names, st.integers(1, 30), max_size=3)
    return Returning(config, requests, draw(st.integers(0, 40)), draw(steps))


def watch(monkeypatch: pytest.MonkeyPatch, met: set[str]) -> None:
    """Notes the states that an engine is in while pages are on their way."""
    go_on, cancel = Scheduler.go_on_with_copies, Engine.cancel

    def watched(scheduler: Scheduler) -> None:
        go_on(scheduler)
        loading = sum(s.status is Status.LOADING for s in scheduler.admitted)
        if loading == scheduler.config.max_num_seqs > 1:
            met.add("all of several slots")
        if loading and scheduler.leaves_slots_idle:
            met.add("a part of what is asked for")

    def watched_cancel(engine: Engine, request_id: str) -> None:
        sequence = engine._sequences.get(request_id)
        if sequence is not None and sequence.status is Status.LOADING:
            met.add("one that is cancelled")
        cancel(engine, request_id)

    monkeypatch.setattr(Scheduler, "go_on_with_copies", watched)
    monkeypatch.setattr(Engine, "cancel", watched_cancel)


def answered(case: Returning, met: set[str]) -> tuple[Engine, dict[str, Answer]]:
    """What they are answered when they come again; `drive` gives up on an engine that waits."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("eagle3_jax.engine.engine.BETWEEN_LOOKS_S", 0)
        engine = Engine(*simulated_pair(monkeypatch), case.config)
        for request in case.requests:
            drive(engine, [request])
        monkeypatch.setattr(SimulatedRunner, "copy_steps", case.copy_steps)
        watch(monkeypatch, met)
        return engine, drive(engine, case.requests, cancel_at=case.cancel_at)


def test_whatever_loads_and_whoever_leaves_all_are_answered_and_no_page_is_lost() -> None:
    met: set[str] = set()

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(returning())
    def holds(case: Returning) -> None:
        engine, answers = answered(case, met)
        stats, tier = engine.stats(), engine._replicas.first.tier
        assert stats.free_pages == stats.total_pages and stats.num_running == 0
        assert tier is not None and not tier.is_busy and not tier._holds.total()
        for request in case.requests:
            answer, (tokens, *_) = answers[request.request_id], plain_answer(request, case.config)
            assert answer.token_ids == tokens[: len(answer.token_ids)]
            assert answer.finish[0] == "abort" or answer.token_ids == tokens
        assert all(answers[name].finish[0] for name in case.cancel_at)

    holds()
    assert met == STATES


def run_again(monkeypatch: pytest.MonkeyPatch, kv_offloading_bytes: int) -> tuple[int, int]:
    """Tokens that went through prefills again, and preemptions, of four whose answers outgrow the
    pool."""
    config = EngineConfig(
        3, 100, 4, 4, num_pages=27, prefill_chunk=8, kv_offloading_bytes=kv_offloading_bytes
    )
    requests = [
        Request(f"{user}", [user, *range(16)], SamplingParams(max_tokens=80, seed=user))
        for user in range(4)
    ]
    monkeypatch.setattr("eagle3_jax.engine.engine.BETWEEN_LOOKS_S", 0)
    engine = Engine(*simulated_pair(monkeypatch), config)
    answers = drive(engine, requests)
    for request in requests:
        assert answers[request.request_id].token_ids == plain_answer(request, config)[0]
    assert engine._replicas.first.pages.num_lost == 0
    return prefilled(engine) - 4 * 17, engine.stats().num_preemptions


def test_a_preempted_sequence_comes_back_from_the_hosts_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs again what was in no full page, and the last round."""
    least, preemptions = run_again(monkeypatch, kv_offloading_bytes=100)
    assert 0 < least <= preemptions * (4 + 2 * (3 + 1))
    most, preemptions = run_again(monkeypatch, kv_offloading_bytes=0)
    assert most > preemptions * (4 + 2 * (3 + 1))
