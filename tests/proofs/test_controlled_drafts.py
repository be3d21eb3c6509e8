"""Drafts keep to the options that the target keeps to: penalties and biases cost no acceptance.

What is committed can't tell: a draft that ignores them is rejected, and the answer is the same.
"""

from typing import Any

import pytest
from broken_programs import compile_rounds_anew
from driving import drive, sizes
from tiny import VOCAB

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.programs import executor
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative import propose

STRONG: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 3.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    "likes repeating": {"presence_penalty": -2.0, "frequency_penalty": -2.0},
    "bias": {"logit_bias": {token: -100.0 for token in range(0, VOCAB, 2)}},
    "allowed": {"allowed_token_ids": range(0, VOCAB, 3)},
    "bad words": {"bad_words_ids": [[token] for token in range(1, VOCAB, 2)]},
}
LEAST = 0.85
"""Of the drafts accepted a round without options, with strong ones."""


def accepted(engine: Engine, options: dict[str, Any]) -> float:
    """Drafts accepted a round, over twelve requests."""
    before = engine.stats()
    requests = [
        Request(
            f"{i}",
            [i, 2 * i + 1, 5],
            SamplingParams(seed=i, temperature=i % 2, max_tokens=40, **options),
        )
        for i in range(12)
    ]
    drive(engine, requests)
    after = engine.stats()
    return (after.num_accepted_tokens - before.num_accepted_tokens) / (
        after.num_drafts - before.num_drafts
    )


def ready(target: Target, draft: Eagle3Draft) -> Engine:
    return Engine(target, draft, sizes(3), eos_token_ids=())


@pytest.fixture(scope="module")
def engine(target: Target, draft: Eagle3Draft) -> Engine:
    return ready(target, draft)


@pytest.fixture(scope="module")
def free(engine: Engine) -> float:
    """Drafts accepted a round without options."""
    return accepted(engine, {})


def test_strong_options_leave_drafts_their_acceptance(engine: Engine, free: float) -> None:
    for name, options in STRONG.items():
        assert accepted(engine, options) > LEAST * free, name


@pytest.mark.long
def test_the_proof_notices_drafts_that_ignore_the_options(
    target: Target, draft: Eagle3Draft, free: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propose, "control_logits", lambda logits, *_: logits)
    compile_rounds_anew(monkeypatch, executor)
    broken = ready(target, draft)
    for name, options in STRONG.items():
        assert accepted(broken, options) < LEAST * free, name
