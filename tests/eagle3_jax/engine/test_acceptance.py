"""Counters of an engine, on rounds written by hand and on a device that is recorded or scripted."""

from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from driving import Answer, drive
from simulated_device import VOCAB, SimulatedRunner, simulated_engine
from toy_tokenizer import ToyTokenizer

from eagle3_jax.engine import Acceptance, Engine, EngineConfig, Request, Round
from eagle3_jax.sampling.params import SamplingParams

K = 3
CONFIG = EngineConfig(K, max_model_len=48, max_num_seqs=3, page_size=4)


def test_figures_of_a_trace_written_by_hand() -> None:
    trace = [
        Round(drafted=3, wanted=3, verified=3, accepted=3, kept=4),
        Round(drafted=3, wanted=3, verified=3, accepted=0, kept=1),
        Round(drafted=3, wanted=3, verified=3, accepted=2, kept=3),
        Round(drafted=3, wanted=2, verified=2, accepted=1, kept=2),
        Round(drafted=3, wanted=3, verified=1, accepted=1, kept=2),
        Round(drafted=3, wanted=3, verified=0, accepted=0, kept=1),
        Round(drafted=3, wanted=3, verified=3, accepted=3, kept=2),
    ]
    counts = Acceptance(Counter(trace), K)
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (6, 15, 10)
    assert (counts.accept_length, counts.accept_length_eos_corrected) == (16 / 6, 14 / 6)
    assert counts.acceptance_rate == 10 / 15
    assert counts.accepted_histogram == (1, 2, 1, 2)
    assert counts.num_accepted_per_pos == (5, 3, 2)
    assert counts.num_tried_per_pos == (6, 4, 3)
    assert counts.acceptance_per_pos == (5 / 6, 3 / 6, 2 / 6)
    assert counts.conditional_acceptance_per_pos == (5 / 6, 3 / 4, 2 / 3)
    assert (counts.skipped_by_request, counts.skipped_for_room) == (1, 5)


def test_without_a_draft_nothing_is_divided_by_zero() -> None:
    empty = Acceptance({}, K)
    assert (empty.accept_length, empty.acceptance_rate) == (None, None)
    assert empty.conditional_acceptance_per_pos == (None,) * K
    assert Acceptance({Round(0, 0, 0, 0, 1): 5}, 0).accept_length == 1


Rows = dict[str, list[tuple[int, int, int]]]
"""Of each request's rounds: the position they began at, drafts verified, tokens committed."""


def recorded(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Rows:
    """The simulated device's result for each row of its rounds, in order."""
    runner: Any = engine._runner
    assert isinstance(runner, SimulatedRunner)
    advance, rows = runner._advance, defaultdict(list)

    def record(sequence: Any, drafts: int) -> Any:
        start = len(runner.slots[sequence.slot].tokens)
        report = advance(sequence, drafts)
        name = sequence.request.request_id
        rows[name].append((start, report.verified, len(report.token_ids)))
        return report

    monkeypatch.setattr(runner, "_advance", record)
    return rows


def requests(rng: np.random.Generator) -> list[Request]:
    """Answers that end by length or by a stop id, which may be anywhere in a round; some want
    fewer drafts."""
    return [
        Request(
            f"{i}",
            rng.integers(0, VOCAB, 4).tolist(),
            SamplingParams(
                max_tokens=int(rng.integers(1, 40)),
                seed=i,
                stop_token_ids=rng.integers(0, VOCAB, i % 3).tolist(),
                num_speculative_tokens=int(rng.integers(0, K + 1)) if i % 2 else None,
            ),
        )
        for i in range(12)
    ]


def rounds_by_hand(asked: Request, rows: list[tuple[int, int, int]], answer: Answer) -> list[Round]:
    """A request's rounds, from what the device did and the length of the answer."""
    left, found = len(answer.token_ids) - 1, []
    wanted = asked.sampling.num_speculative_tokens
    for _, verified, committed in rows:
        if left > 0:
            kept = min(committed, left)
            found.append(Round(K, K if wanted is None else wanted, verified, committed - 1, kept))
            left -= kept
    return found


@pytest.mark.parametrize("seed", range(2))
def test_an_engine_counts_what_its_device_did(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Per request and in sum; every draft token that was made is verified or has a reason."""
    asked = requests(np.random.default_rng(seed))
    engine = simulated_engine(monkeypatch, CONFIG)
    rows = recorded(monkeypatch, engine)
    answers = drive(engine, asked)
    expected: Counter[Round] = Counter()
    for request in asked:
        name = request.request_id
        rounds = rounds_by_hand(request, rows[name], answers[name])
        assert [r for output in answers[name].outputs for r in output.rounds] == rounds
        expected.update(rounds)
    stats = engine.stats()
    assert stats.rounds == expected
    assert stats.generation_tokens == len(asked) + sum(r.kept * n for r, n in expected.items())
    assert stats.num_kept_tokens < stats.num_accepted_tokens + stats.num_drafts, "no run was cut"
    made = K * sum(map(len, rows.values()))
    skipped = stats.skipped_by_request, stats.skipped_for_room, stats.skipped_finished
    assert all(skipped), "a reason did not occur"
    assert stats.num_draft_tokens + sum(skipped) == made


ROOMY: dict[str, Any] = {"max_model_len": 48, "max_num_seqs": 3, "page_size": 4}
TIGHT = ROOMY | {"num_pages": 18, "enable_prefix_caching": False}


def origins_of(rows: Rows) -> dict[tuple[str, int], int]:
    """(request, position) -> which draft of its round the device accepted there; 0 for none."""
    return {
        (name, start + index): (index + 1) % committed
        for name, rounds in rows.items()
        for start, _, committed in rounds
        for index in range(committed)
    }


def eight_requests(**sampling: Any) -> list[Request]:
    params = [SamplingParams(max_tokens=30, seed=i, **sampling) for i in range(8)]
    return [Request(f"{i}", [i, 2 * i % VOCAB, 5], params[i]) for i in range(8)]


def counted(answers: dict[str, Answer]) -> tuple[int, ...]:
    """Tokens by the position of their draft, from 1."""
    counts = Counter(origin for answer in answers.values() for origin in answer.origins)
    return tuple(counts[position] for position in range(1, K + 1))


@pytest.mark.parametrize("sampling", [{}, {"stop_token_ids": [3]}, {"stop": ["ba", "aab"]}])
@pytest.mark.parametrize("sizes", [ROOMY, TIGHT, TIGHT | {"exact": True}])
def test_origins_are_what_the_device_did_however_an_answer_ends(
    monkeypatch: pytest.MonkeyPatch, sizes: dict[str, Any], sampling: dict[str, Any]
) -> None:
    """Token by token, with ends inside a run, tokens that stop strings hold back or cut, and
    answers that a preemption made start again."""
    engine = simulated_engine(monkeypatch, EngineConfig(K, **sizes), tokenizer=ToyTokenizer())
    rows = recorded(monkeypatch, engine)
    asked = eight_requests(**sampling)
    answers = drive(engine, asked)
    device = origins_of(rows)
    for request in asked:
        answer, length = answers[request.request_id], len(request.prompt_ids)
        for output in answer.outputs:
            assert len(output.origins) == len(output.token_ids)
        places = range(length, length + len(answer.token_ids))
        expected = [device.get((request.request_id, place), 0) for place in places]
        assert answer.origins == expected
    stats = engine.stats()
    assert all(counted(answers))
    if not sampling:
        assert counted(answers) == stats.num_accepted_per_pos
        assert bool(stats.num_preemptions) == (sizes is not ROOMY)


FEW_PAGES = EngineConfig(3, max_model_len=40, max_num_seqs=2, page_size=4, num_pages=21)


def engine_accepting(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], config: EngineConfig = FEW_PAGES
) -> Engine:
    """Every round accepts the next of these counts, as far as there is room."""
    engine = simulated_engine(monkeypatch, config)
    script: Any = iter(counts)
    runner: Any = engine._runner
    assert isinstance(runner, SimulatedRunner)
    monkeypatch.setattr(runner, "agreeing", lambda slot: next(script))
    return engine


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
    monkeypatch.setattr(engine._replicas.first, "incoming", waits)
    assert (engine.stats().num_waiting, engine.stats().num_deferred) == (2, 2)


def test_a_request_starts_once_when_its_prompt_first_runs_preempted_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 10 pages of 4 hold one answer of 25 tokens, not two.
    engine = engine_accepting(monkeypatch, [0] * 200, replace(FEW_PAGES, num_pages=11))
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
