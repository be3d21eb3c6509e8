"""Proof (a) for rejection sampling: over all noise and accept paths, outputs follow the target.

Whole generations are counted over every outcome of four streams of noise: what the draft draws,
whether it is accepted, what replaces it, and the bonus token. Distributions are thirds, so the
counts are integers and must be the target's to the unit. Rounds decode one token more than is
counted, so that the first of them has room for two drafts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import ideal_noise
import jax
import numpy as np
import pytest
from broken_rejection import (
    BROKEN,
    distribution_without_options,
    reaches_a_draft_by_its_weight,
    replaces_from_p,
    shared,
    weights_beyond_one,
)
from exact_distribution import exact_distribution
from ideal_noise import DIGITS, IdealStreams
from slot_rows import option_rows
from tree_decoding import (
    PROMPT,
    Decoder,
    DrawWithProbs,
    RejectionDrafter,
    Verify,
    strings_of,
    with_seeds,
)
from tree_model import ThirdsModel

from eagle3_jax.sampling.noise import Stream
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative import rejection
from eagle3_jax.speculative.propose import draw_with_probs
from eagle3_jax.speculative.rejection import verify_by_rejection

VOCAB, LENGTH = 3, 2
PLAIN = SamplingParams(temperature=1.0)
MODELS = (0, 27)
"""Seeds. What the second draft draws first leaves, when rejected, two tokens to choose from."""
BLOCK_MODELS = (267, 611, 2967, 27)
"""Seeds of which all thresholds and residuals of blocks are sixths: thresholds 0, 1/2 and 1 of
weights 1/3, 2/3 and 1. In the last, a draft of a ratio above 1 comes before one below 1."""


@dataclass(frozen=True)
class Case:
    """k drafts a round under these options, by a draft of some ids that is sometimes lost."""

    k: int
    options: SamplingParams = PLAIN
    target_ids: tuple[int, ...] | None = None
    lost: tuple[int, ...] = ()
    models: Sequence[int] = MODELS
    block: bool = False


CASES = {
    "one draft": Case(1),
    "two drafts": Case(2),
    "top-k": Case(1, replace(PLAIN, top_k=1)),
    "min-p and top-p": Case(1, replace(PLAIN, min_p=0.4, top_p=0.6)),
    "greedy": Case(2, replace(PLAIN, temperature=0.0), models=range(4)),
    "reduced vocabulary": Case(1, target_ids=(0, 2)),
    "one id": Case(1, target_ids=(1,)),
    "lost drafts": Case(2, lost=(0, 2)),
    "block": Case(2, models=BLOCK_MODELS, block=True),
    "block, greedy": Case(2, replace(PLAIN, temperature=0.0), models=range(4), block=True),
    "block, lost drafts": Case(2, lost=(0, 2), models=BLOCK_MODELS[:2], block=True),
}


def check_counts(
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    models: Sequence[int],
    verify: Verify = verify_by_rejection,
    draw: DrawWithProbs = draw_with_probs,
) -> None:
    """Over all noise, every answer comes as often as the target's distribution says, exactly."""
    streams = IdealStreams(case.k, LENGTH, first_position=len(PROMPT))
    streams.install(monkeypatch)
    rows = with_seeds(option_rows([case.options], PROMPT), streams.outcomes)
    # Compiled here, as they are now: tests replace what they call.
    decide = jax.jit(lambda *inputs: verify(*inputs, block=case.block))
    drawn = jax.jit(lambda *inputs: draw(*inputs, vocab_size=VOCAB))
    paths = []
    for seed in models:
        target = ThirdsModel(VOCAB, LENGTH, seed=2 * seed)
        columns = None if case.target_ids is None else len(case.target_ids)
        model = ThirdsModel(VOCAB, LENGTH + case.k, seed=2 * seed + 1, columns=columns)
        drafter = RejectionDrafter(model, rows, case.k, drawn, case.target_ids, case.lost)
        tokens, path = Decoder(target, rows).rounds(decide, drafter, LENGTH + 1, case.k)
        distribution = distribution_of_answers(target, case.options, outcomes=len(tokens))
        assert dict(strings_of(tokens[:, :LENGTH], VOCAB)) == distribution
        paths.extend(map(tuple, path))
    assert len(set(paths)) > 1, "a single accept path was taken"


def distribution_of_answers(
    target: ThirdsModel, options: SamplingParams, outcomes: int
) -> dict[tuple[int, ...], int]:
    """Outcomes of each answer under the target's exact distribution."""
    distribution = {}
    for answer in product(range(VOCAB), repeat=LENGTH):
        share = 1.0
        for length, token in enumerate(answer):
            logits = target.logits(np.array([answer]), np.array([length]))[0]
            share *= distribution_of_token(logits, options)[token]
        assert abs(share * outcomes - round(share * outcomes)) < 0.01, (
            "the distribution has no exact count"
        )
        if share > 0:
            distribution[answer] = round(share * outcomes)
    return distribution


def distribution_of_token(logits: np.ndarray, options: SamplingParams) -> np.ndarray:
    if options.temperature == 0:
        return np.eye(VOCAB)[np.argmax(logits)]
    return exact_distribution(logits, options)


SWEEP = ("greedy", "lost drafts", "block, greedy", "block, lost drafts")
"""Cases of two drafts whose properties the cases of one draft, or the others of two, have too."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.long] * (name in SWEEP))
        for name, case in CASES.items()
    ],
)
def test_over_all_noise_and_accept_paths_rejection_has_the_targets_distribution(
    case: Case, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    check_counts(monkeypatch, case, range(40) if long and not case.block else case.models)


@pytest.mark.parametrize(
    ("wrong", "case"),
    [*((wrong, "two drafts") for wrong in BROKEN), (replaces_from_p, "block")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_proof_of_rejection_notices(
    wrong: Verify, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="=="):
        check_counts(monkeypatch, CASES[case], CASES[case].models, verify=wrong)


@pytest.mark.parametrize("wrong", [reaches_a_draft_by_its_weight, weights_beyond_one])
def test_the_proof_notices_a_wrong_block(
    wrong: Callable[..., jax.Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "_thresholds" if wrong is reaches_a_draft_by_its_weight else "_weights"
    monkeypatch.setattr(rejection, name, wrong)
    with pytest.raises(AssertionError, match="=="):
        check_counts(monkeypatch, CASES["block"], BLOCK_MODELS[::-1])


def test_the_proof_notices_noise_that_rounds_share(monkeypatch: pytest.MonkeyPatch) -> None:
    own = IdealStreams.stream_seed
    monkeypatch.setattr(IdealStreams, "stream_seed", lambda *inputs: own(*inputs[:3]))
    with pytest.raises(AssertionError, match="=="):
        check_counts(monkeypatch, CASES["block"], BLOCK_MODELS)


def test_the_proof_notices_probabilities_without_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(AssertionError, match="=="):
        check_counts(monkeypatch, CASES["top-k"], MODELS, draw=distribution_without_options)


@pytest.mark.parametrize("stream", [Stream.ACCEPT, Stream.RESIDUAL])
def test_the_proof_notices_streams_that_are_one(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ideal_noise, "DIGITS", shared(DIGITS, stream, Stream.DRAFT))
    with pytest.raises(AssertionError, match="=="):
        check_counts(monkeypatch, CASES["one draft"], MODELS)
