"""Options that look at token ids keep their promises.

tests/worlds holds that answers are the same with and without speculation.
"""

from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from driving import drive, sizes
from tiny import VOCAB

import eagle3_jax
from eagle3_jax.engine import Engine, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

OPTIONS: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {3: 4.0, 10: -100.0, 50: 2.5}},
    "allowed": {"allowed_token_ids": range(0, VOCAB, 3)},
    "bad words": {"bad_words_ids": [[5], *([a, b] for a in range(0, VOCAB, 8) for b in (1, 9))]},
    "many stops": {"stop_token_ids": range(30, 70), "min_tokens": 20},
}


@pytest.fixture(scope="module")
def engine(target: Target, draft: Eagle3Draft) -> Engine:
    return Engine(target, draft, sizes(3), eos_token_ids=())


def penalized(logits: np.ndarray, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Repetition 1.6, frequency 0.5, presence 0.25 by hand."""
    scores = logits.astype(np.float64)
    for token in {*prompt, *answer}:
        scores[token] *= 1.6 if scores[token] < 0 else 1 / 1.6
    counts = np.bincount(np.asarray(answer, int), minlength=len(scores))
    return scores - 0.5 * counts - 0.25 * (counts > 0)


def test_penalized_greedy_answers_are_those_of_the_whole_model_step_by_step(
    target: Target, engine: Engine
) -> None:
    fields: dict[str, Any] = {
        "repetition_penalty": 1.6,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
    }
    sampling = SamplingParams(temperature=0.0, max_tokens=24, **fields)
    prompts = [[i, 2 * i + 1, 5] for i in range(6)]
    requests = [Request(f"{i}", prompt, sampling) for i, prompt in enumerate(prompts)]
    answers = drive(engine, requests)
    assert engine.stats().num_preemptions > 0
    for prompt, answer in zip(prompts, answers.values(), strict=True):
        tokens = answer.token_ids
        logits = eagle3_jax.forward(target, jnp.asarray([prompt + tokens])).logits[0]
        for index, token in enumerate(tokens):
            row = np.asarray(logits[len(prompt) + index - 1])
            assert penalized(row, prompt, tokens[:index]).argmax() == token


def test_no_barred_token_ever_appears(engine: Engine) -> None:
    requests = [
        Request(name, [11 * i, 5, 7], SamplingParams(seed=i, max_tokens=30, **options))
        for i, (name, options) in enumerate(OPTIONS.items())
    ]
    found = {name: answer.token_ids for name, answer in drive(engine, requests).items()}
    assert 10 not in found["bias"]
    assert all(token % 3 == 0 for token in found["allowed"])
    assert 5 not in found["bad words"]
    assert all(a % 8 or b not in (1, 9) for a, b in pairwise(found["bad words"]))
    assert not {*found["many stops"][:19]} & {*range(30, 70)}
