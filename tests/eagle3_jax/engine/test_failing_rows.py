"""A request that nothing can be chosen for fails alone and says why."""

from collections.abc import Iterator
from typing import Any

import pytest
from driving import Answer, drive, sizes
from tiny import VOCAB, tiny_draft, tiny_target

from eagle3_jax.engine import Engine, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling_params import SamplingParams

POISON = VOCAB - 1
"""The token whose embedding is spoiled: a prompt that holds it has no finite logits."""
HEALTHY = [[3, 1, 4], [1, 5, 9, 2], [6, 5]]
BAN = {POISON: -100.0}


@pytest.fixture(scope="module", params=[float("nan"), float("inf")], ids=str)
def spoiled(request: pytest.FixtureRequest) -> Iterator[tuple[KimiTarget, Eagle3Draft]]:
    target = tiny_target()
    embedding = target.embed_tokens.embedding
    embedding.set_value(embedding.get_value().at[POISON, 0].set(request.param))
    yield target, tiny_draft(target)


def healthy_requests(temperature: float) -> list[Request]:
    sampling = SamplingParams(temperature=temperature, max_tokens=12, seed=3, logit_bias=BAN)
    return [Request(f"{i}", prompt, sampling) for i, prompt in enumerate(HEALTHY)]


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_end_their_own_request(
    spoiled: tuple[KimiTarget, Eagle3Draft], k: int, temperature: float
) -> None:
    engine = Engine(*spoiled, sizes(k), eos_token_ids=())
    engine.warmup()
    sound = drive(engine, healthy_requests(temperature))
    bad = Request("bad", [2, POISON, 8], SamplingParams(max_tokens=12))
    requests = healthy_requests(temperature)
    answers = drive(engine, [requests[0], bad, *requests[1:]])
    failed = answers.pop("bad")
    assert failed.finish == ("error", "the model's logits are not finite")
    assert failed.token_ids == []
    assert {n: a.token_ids for n, a in answers.items()} == {
        n: a.token_ids for n, a in sound.items()
    }
    assert engine.stats().free_pages == engine.stats().total_pages


def test_a_failure_in_mid_answer_follows_the_plain_tokens(
    spoiled: tuple[KimiTarget, Eagle3Draft],
) -> None:
    """A bias makes the answer run into the spoiled token, which is itself still put out.

    With drafts the failure may come earlier: a spoiled draft's rows spoil those of its chain.
    """

    def ask(k: int, bias: float) -> Answer:
        engine = Engine(*spoiled, sizes(k), eos_token_ids=())
        engine.warmup()
        sampling = SamplingParams(seed=1, max_tokens=20, logit_bias={POISON: bias})
        return drive(engine, [Request("x", [3, 1, 4], sampling)])["x"]

    failed = next(b for b in (1.0, 2.0, 3.0, 4.0) if ask(0, b).finish[0] == "error")
    plain, drafted = ask(0, failed), ask(3, failed)
    assert plain.token_ids[-1] == POISON and POISON not in plain.token_ids[:-1]
    assert drafted.finish == plain.finish
    assert drafted.token_ids == plain.token_ids[: len(drafted.token_ids)]


@pytest.mark.parametrize("k", [0, 3])
def test_options_that_bar_every_token_end_their_own_request(
    target: KimiTarget, draft: Eagle3Draft, k: int
) -> None:
    engine = Engine(target, draft, sizes(k), eos_token_ids=())
    engine.warmup()
    barred: dict[str, Any] = {"allowed_token_ids": [5, 6], "bad_words_ids": [[5], [6, 6]]}
    requests = [
        Request("two", [1, 2], SamplingParams(max_tokens=9, **barred)),
        Request("other", [1, 2], SamplingParams(max_tokens=9, seed=0)),
    ]
    answers = drive(engine, requests)
    assert answers["two"].token_ids == [6]
    assert answers["two"].finish == ("error", "the request's options bar every token")
    assert answers["other"].finish == ("length", None)
    assert len(answers["other"].token_ids) == 9
