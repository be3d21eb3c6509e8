"""The tie rule on constructed cases, and as a property of the sampler it is about."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_pair import PROMPTS, small_pair

from eagle3_jax import SamplingParams, forward
from eagle3_jax.sampling.rows import pack_sampling
from eagle3_jax.sampling.sampler import process_logits
from eagle3_tools.bench.equality.ties import Scorer, first_difference, near_cut, tie_cause

FAR = math.inf


def shares(*values: float) -> np.ndarray:
    return np.log(np.array(values))


def sampled(**options: float) -> SamplingParams:
    return SamplingParams(temperature=1.0, **options)  # pyright: ignore[reportArgumentType]


def test_the_first_difference_may_be_an_end() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


@pytest.mark.parametrize(
    ("tokens", "margin", "router", "cause"),
    [
        ((0, 1), 9e-5, FAR, "score"),
        ((0, 1), 2e-4, FAR, None),
        ((0, 1), 1.0, 9e-6, "router"),
        ((0, 1), 1.0, 2e-5, None),
        ((0, None), 0.0, 0.0, None),
    ],
)
def test_scores_and_routers_may_tie_but_not_an_end(
    tokens: tuple[int, int | None], margin: float, router: float, cause: str | None
) -> None:
    assert tie_cause(shares(0.5, 0.3, 0.2), tokens, margin, router, sampled()) == cause


CUTS = [
    # the two after the first are the k-th and its rival
    (shares(0.5, 0.25, 0.25), {"top_k": 2}, True),
    (shares(0.5, 0.26, 0.24), {"top_k": 2}, False),
    # 0.9 outranks the third
    (shares(0.6, 0.3, 0.1), {"top_p": 0.90005}, True),
    (shares(0.6, 0.3, 0.1), {"top_p": 0.905}, False),
    # the third is at a tenth of the first
    (shares(0.6, 0.34, 0.06), {"min_p": 0.100005}, True),
    (shares(0.6, 0.34, 0.06), {"min_p": 0.11}, False),
    # of an entropy of 0.898 the third is the farthest, and 0.9 are nearer
    (shares(0.6, 0.3, 0.1), {"typical_p": 0.90005}, True),
    (shares(0.6, 0.3, 0.1), {"typical_p": 0.905}, False),
    # min-p takes the last away, so that the first has 5/9 of the mass
    (shares(0.5, 0.4, 0.1), {"top_p": 5 / 9}, False),
    (shares(0.5, 0.4, 0.1), {"top_p": 5 / 9, "min_p": 0.3}, True),
]


@pytest.mark.parametrize(("scores", "options", "near"), CUTS)
def test_a_candidate_at_a_cut_is_recognised(
    scores: np.ndarray, options: dict[str, float], near: bool
) -> None:
    assert near_cut(scores, [1, 2], sampled(**options)) is near
    cause = tie_cause(scores, (1, 2), 1.0, FAR, sampled(**options))
    assert cause == ("cut" if near else None)


def test_greedy_has_no_cuts() -> None:
    greedy = SamplingParams(temperature=0, top_k=2, min_p=0.5)
    assert not near_cut(shares(0.4, 0.3, 0.3), [1, 2], greedy)


filtered = jax.jit(process_logits)


def kept(scores: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """Return the ids that the engine's sampler keeps of these scores."""
    rows = pack_sampling(sampling)
    logits = jnp.asarray(scores, jnp.float32)[None, None]
    return np.isfinite(np.asarray(filtered(logits, jnp.zeros((1, 1), jnp.int32), rows))[0, 0])


def test_tokens_away_from_cuts_keep_their_side_when_scores_move_a_little() -> None:
    rng, moved = np.random.default_rng(0), 0
    for _ in range(60):
        scores = rng.normal(size=24) * 2
        sampling = sampled(
            top_k=int(rng.integers(0, 12)),
            top_p=rng.uniform(0.3, 1),
            min_p=rng.uniform(0, 0.1),
            typical_p=rng.choice([1.0, rng.uniform(0.3, 1)]),
        )
        before = kept(scores, sampling)
        after = kept(scores + rng.uniform(-2e-5, 2e-5, size=24), sampling)
        sure = [t for t in range(24) if not near_cut(scores, [t], sampling)]
        assert (before[sure] == after[sure]).all()
        moved += len(sure)
    assert moved > 1000


def test_a_wrong_token_is_found_with_its_margin_and_not_excused() -> None:
    target, prompt = small_pair().target, PROMPTS[0]
    sampling = SamplingParams(temperature=0, max_tokens=6, seed=3, ignore_eos=True)
    right = [5, 3, 11, 2, 7, 1]
    wrong = [*right[:3], (right[3] + 1) % 12, *right[4:]]
    scorer = Scorer(target, 32)
    assert scorer.explain("same", prompt, sampling, right, list(right)) is None
    found = scorer.explain("request", prompt, sampling, right, wrong)
    assert found and (found.index, found.tokens) == (3, (right[3], wrong[3]))
    assert found.cause is None
    logits = np.asarray(forward(target, jnp.asarray([prompt + right[:3]])).logits)[0, -1]
    np.testing.assert_allclose(
        found.score_margin, abs(logits[right[3]] - logits[wrong[3]]), atol=1e-4
    )


CONTROLS: dict[str, dict[str, Any]] = {
    "bias": {},
    "repetition": {"repetition_penalty": 1.4},
    "counts": {"presence_penalty": 0.7, "frequency_penalty": -0.3},
    "all": {"repetition_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": 0.6},
}


def controlled_score(logit: float, count: int, in_prompt: bool, options: dict[str, Any]) -> float:
    """A token's score by the rules of docs/request-options.md, in Python."""
    factor = options.get("repetition_penalty", 1.0) if count or in_prompt else 1.0
    score = logit / factor if logit > 0 else logit * factor
    score -= count * options.get("frequency_penalty", 0.0)
    return score - (count > 0) * options.get("presence_penalty", 0.0)


@pytest.mark.parametrize("name", CONTROLS)
def test_a_tie_that_options_on_tokens_make_is_recognised(name: str) -> None:
    """A bias lifts a token that was not seen to the score of one that is in prompt and answer."""
    target, prompt, answer = small_pair().target, [9, 1, 7, 5], [5, 3, 5]
    options = CONTROLS[name]
    logits = np.asarray(forward(target, jnp.asarray([prompt + answer])).logits, np.float64)[0, -1]
    rival = float(logits[2])
    lift = controlled_score(float(logits[5]), 2, True, options) - rival
    scorer, causes = Scorer(target, 32), []
    for off in (0.0, 5e-3):
        sampling = SamplingParams(
            temperature=0, max_tokens=9, seed=3, logit_bias={2: lift + off}, **options
        )
        found = scorer.explain("x", prompt, sampling, [*answer, 5], [*answer, 2])
        assert found is not None
        assert found.score_margin == pytest.approx(off, abs=5e-5)
        causes.append(found.cause)
    assert causes == ["score", None]


def test_cuts_are_measured_from_the_best_token_that_is_not_barred() -> None:
    """The best token ends the answer, which is too early; the third is at min-p of the second."""
    target, prompt = small_pair().target, PROMPTS[0]
    logits = np.asarray(forward(target, jnp.asarray([prompt])).logits, np.float64)[0, -1]
    best, second, third = np.argsort(-logits)[:3].tolist()
    sampling = SamplingParams(
        max_tokens=9, seed=3, min_p=math.exp(logits[third] - logits[second]), min_tokens=4
    )
    causes = [
        found.cause
        for eos in ((best,), ())
        if (found := Scorer(target, 32, eos).explain("x", prompt, sampling, [second], [third]))
    ]
    assert causes == ["cut", None]
