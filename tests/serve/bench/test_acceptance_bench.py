"""The command that holds coupled acceptance against theory: right formula, right probabilities,
and it fails when what it measures is not coupled."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from small_pair import PROMPTS, small_pair

from eagle3_jax import SamplingParams
from eagle3_jax.engine import Request
from serve.bench.acceptance.probabilities import Acceptance, coupled_acceptance
from serve.bench.acceptance.recorded_rounds import Draft, RecordedRounds
from serve.bench.common.drive import drive
from serve.bench.studies import acceptance
from serve.bench.studies.acceptance import AcceptanceRow, summarize, synthetic_rows
from serve.pair.loading import build_engine

K, LENGTH, TOKENS = 3, 128, 100
SAMPLING = SamplingParams(temperature=10.0, max_tokens=TOKENS, ignore_eos=True)
REQUESTS = [replace(SAMPLING, seed=seed) for seed in range(2 * len(PROMPTS))]


def random_probabilities(rng: np.random.Generator, size: int) -> np.ndarray:
    """Some ids have no probability."""
    weights = rng.exponential(size=size) * (rng.random(size) < 0.8)
    weights[rng.integers(size)] += 0.1
    return weights / weights.sum()


def test_coupled_acceptance_is_the_sum_over_all_pairs_of_ids() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        p, q = random_probabilities(rng, 7), random_probabilities(rng, 7)
        both = np.flatnonzero((p > 0) & (q > 0))
        direct = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in both)
        assert coupled_acceptance(p, q) == pytest.approx(direct, abs=1e-12)
        assert coupled_acceptance(p, p) == pytest.approx(1)


def test_what_stands_next_to_it_by_hand() -> None:
    theory = Acceptance.of(np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.0, 0.75]))
    assert (theory.optimum, theory.bound) == pytest.approx((0.25, 0.25 / 1.75))
    assert theory.greedy_draft == 0 and theory.entropy == pytest.approx(np.log(2))
    # Both choose id 0: 1 / (1 + 1 + 3), the larger ratio of each id.
    assert theory.coupled == pytest.approx(1 / 5)


@pytest.fixture(scope="module")
def drafts() -> list[Draft]:
    return list(RecordedRounds(small_pair(), K, LENGTH).drafts(2 * PROMPTS, REQUESTS))


def row_of(drafts: Sequence[Draft]) -> AcceptanceRow:
    return summarize("pair", [(Acceptance.of(d.p, d.q), d.accepted) for d in drafts])


def test_recorded_rounds_are_the_engines_and_their_probabilities_explain_them(
    drafts: list[Draft],
) -> None:
    engine = build_engine(
        small_pair(), num_speculative_tokens=K, max_model_len=LENGTH, batch_buckets=(8,)
    )
    drive(engine, [Request(f"{i}", p, REQUESTS[i]) for i, p in enumerate(2 * PROMPTS)])
    stats = engine.stats()
    assert len(drafts) == sum(stats.num_tried_per_pos)
    assert sum(d.accepted for d in drafts) == stats.num_accepted_tokens
    row = row_of(drafts)
    assert not row.failures and 0.05 < row.measured < 0.95 and row.drafts > 300


def test_probabilities_that_are_not_the_drafts_explain_nothing(drafts: list[Draft]) -> None:
    assert row_of([draft._replace(q=draft.p) for draft in drafts]).failures


def test_synthetic_distributions_hold_and_independent_noise_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, size in (("SYNTHETIC_VOCAB", 50), ("SYNTHETIC_PAIRS", 4), ("SYNTHETIC_DRAWS", 500)):
        monkeypatch.setattr(acceptance, name, size)
    assert not [failure for row in synthetic_rows(1.0) for failure in row.failures]
    coupled = acceptance._sample
    calls = iter(range(1000))

    def independent(logits, positions, options):
        return coupled(logits, positions + 1000 * next(calls), options)

    monkeypatch.setattr(acceptance, "_sample", independent)
    assert len([row for row in synthetic_rows(1.0) if row.failures]) == 3
