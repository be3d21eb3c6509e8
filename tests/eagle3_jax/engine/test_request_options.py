"""Options that look at token ids give the same tokens with and without speculation."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from driving import Answer, drive, sizes
from tiny import VOCAB

import eagle3_jax
from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

OPTIONS: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {3: 4.0, 10: -100.0, 50: 2.5}},
    "allowed": {"allowed_token_ids": range(0, VOCAB, 3)},
    "bad words": {"bad_words_ids": [[5], *([a, b] for a in range(0, VOCAB, 8) for b in (1, 9))]},
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 1.5, "temperature": 0.0},
    "frequency": {"frequency_penalty": 0.7},
    "likes repeating": {"frequency_penalty": -0.3, "presence_penalty": -1.0},
    "many stops": {"stop_token_ids": range(30, 70), "min_tokens": 20},
    "everything": {
        "logit_bias": {7: 1.0},
        "bad_words_ids": [[2, 3, 4], [40]],
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "min_tokens": 5,
        "top_p": 0.9,
        "temperature": 0.8,
    },
    "two drafts": {"num_speculative_tokens": 2, "repetition_penalty": 1.1},
    "typical": {"typical_p": 0.7},
    "typical and more": {"typical_p": 0.9, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1},
    "no drafts": {"num_speculative_tokens": 0, "temperature": 0.7},
    "none": {"temperature": 0.6},
}


def request_of(name: str, index: int = 0, **changes: Any) -> Request:
    prompt = [(11 * index + 5 * j * j) % VOCAB for j in range(3 + (4 * index) % 15)]
    options: dict[str, Any] = (
        {"seed": index, "max_tokens": 30 + index % 5} | OPTIONS[name] | changes
    )
    return Request(name, prompt, SamplingParams(**options))


def ready(target: Target, draft: Eagle3Draft | None, config: EngineConfig) -> Engine:
    engine = Engine(target, draft, config, eos_token_ids=())
    return engine


@pytest.fixture(scope="module")
def optioned() -> list[Request]:
    return [request_of(name, index) for index, name in enumerate(OPTIONS)]


@pytest.fixture(scope="module")
def alone(target: Target, optioned: list[Request]) -> dict[str, Answer]:
    """Plain decoding, one at a time, never preempted."""
    config = sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,))
    engine = ready(target, None, config)
    answers: dict[str, Answer] = {}
    for request in optioned:
        sampling = replace(request.sampling, num_speculative_tokens=None)
        answers |= drive(engine, [replace(request, sampling=sampling)])
    return answers


def assert_same(answers: dict[str, Answer], alone: dict[str, Answer]) -> None:
    for name, answer in answers.items():
        assert answer.token_ids == alone[name].token_ids, name
        assert answer.finish == alone[name].finish, name


def test_every_option_gives_the_plain_tokens_across_batches_and_preemption(
    target: Target,
    draft: Eagle3Draft,
    optioned: list[Request],
    alone: dict[str, Answer],
) -> None:
    engine = ready(target, draft, sizes(3))
    assert_same(drive(engine, optioned), alone)
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.free_pages == stats.total_pages
    assert 0.3 < stats.num_accepted_tokens / stats.num_drafts


def penalized(logits: np.ndarray, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Repetition 1.6, frequency 0.5, presence 0.25 by hand."""
    scores = logits.astype(np.float64)
    for token in {*prompt, *answer}:
        scores[token] *= 1.6 if scores[token] < 0 else 1 / 1.6
    counts = np.bincount(np.asarray(answer, int), minlength=len(scores))
    return scores - 0.5 * counts - 0.25 * (counts > 0)


def test_penalized_greedy_answers_are_those_of_the_whole_model_step_by_step(
    target: Target, draft: Eagle3Draft
) -> None:
    fields: dict[str, Any] = {
        "repetition_penalty": 1.6,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
    }
    sampling = SamplingParams(temperature=0.0, max_tokens=24, **fields)
    engine = ready(target, draft, sizes(3))
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


def pairs(tokens: list[int]) -> set[tuple[int, int]]:
    return set(pairwise(tokens))


CHECKS: dict[str, Callable[[list[int]], bool]] = {
    "bias": lambda tokens: 10 not in tokens,
    "allowed": lambda tokens: all(token % 3 == 0 for token in tokens),
    "bad words": lambda t: 5 not in t and all(a % 8 or b not in (1, 9) for a, b in pairs(t)),
    "many stops": lambda tokens: not set(tokens[:19]) & set(range(30, 70)),
}


@pytest.mark.parametrize("name", CHECKS)
def test_no_barred_token_ever_appears(alone: dict[str, Answer], name: str) -> None:
    assert CHECKS[name](alone[name].token_ids)


def test_fewer_drafts_are_verified_on_request(target: Target, draft: Eagle3Draft) -> None:
    engine = ready(target, draft, sizes(3))
    for wanted, most in ((0, 0), (1, 1), (2, 2), (None, 3), (9, 3)):
        before = engine.stats()
        sampling = SamplingParams(temperature=0.0, max_tokens=40, num_speculative_tokens=wanted)
        accepted = drive(engine, [Request("x", [1, 2, 3], sampling)])["x"].accepted
        verified = engine.stats().num_draft_tokens - before.num_draft_tokens
        assert max(accepted) <= most
        # The last rounds before the limit verify less.
        assert most * (len(accepted) - 3) <= verified <= most * len(accepted)


@pytest.mark.parametrize(
    "options, named",
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids"),
        ({"bad_words_ids": [[1, VOCAB]]}, "bad_words_ids"),
        ({"stop_token_ids": range(65)}, "64"),
    ],
)
def test_what_this_engine_cannot_do_is_refused_by_name(
    target: Target, draft: Eagle3Draft, options: dict[str, Any], named: str
) -> None:
    engine = Engine(target, draft, sizes(3), eos_token_ids=())
    with pytest.raises(ValueError, match=named):
        engine.add(Request("x", [1], SamplingParams(**options)))
    assert not engine.has_work
