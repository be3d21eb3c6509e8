"""Figures of speculation, on rounds written by hand and on rounds that a device has recorded."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from driving import Answer, drive
from simulated_device import VOCAB, SimulatedRunner, simulated_engine

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


@dataclass
class Recorder:
    """What a simulated device did for each row of its rounds, in order."""

    rows: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def watch(self, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
        runner: Any = engine._runner
        assert isinstance(runner, SimulatedRunner)
        advance = runner._advance

        def record(sequence: Any, drafts: int) -> Any:
            report = advance(sequence, drafts)
            rows = self.rows.setdefault(sequence.request.request_id, [])
            rows.append((report.verified, len(report.token_ids)))
            return report

        monkeypatch.setattr(runner, "_advance", record)


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


def rounds_by_hand(asked: Request, rows: list[tuple[int, int]], answer: Answer) -> list[Round]:
    """A request's rounds, from what the device did and the length of the answer."""
    left, found = len(answer.token_ids) - 1, []
    wanted = asked.sampling.num_speculative_tokens
    for verified, committed in rows:
        if left > 0:
            kept = min(committed, left)
            found.append(Round(K, K if wanted is None else wanted, verified, committed - 1, kept))
            left -= kept
    return found


@pytest.mark.parametrize("seed", range(4))
def test_an_engine_counts_what_its_device_did(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Per request and in sum; every draft token that was made is verified or has a reason."""
    asked = requests(np.random.default_rng(seed))
    engine, device = simulated_engine(monkeypatch, CONFIG), Recorder()
    device.watch(monkeypatch, engine)
    answers = drive(engine, asked)
    expected: Counter[Round] = Counter()
    for request in asked:
        name = request.request_id
        rounds = rounds_by_hand(request, device.rows.get(name, []), answers[name])
        assert [r for output in answers[name].outputs for r in output.rounds] == rounds
        expected.update(rounds)
    stats = engine.stats()
    assert stats.rounds == expected
    assert stats.generation_tokens == len(asked) + sum(r.kept * n for r, n in expected.items())
    assert stats.num_kept_tokens < stats.num_accepted_tokens + stats.num_drafts, "no run was cut"
    made = K * sum(len(rows) for rows in device.rows.values())
    skipped = stats.skipped_by_request, stats.skipped_for_room, stats.skipped_finished
    assert all(skipped), "a reason did not occur"
    assert stats.num_draft_tokens + sum(skipped) == made
