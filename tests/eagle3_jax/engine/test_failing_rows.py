"""A request that nothing can be chosen for fails alone and says why."""

from typing import Any

import numpy as np
import pytest
from driving import drive, sizes
from lab import Lab, one_row
from tiny import VOCAB, tiny_draft, tiny_target

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

POISON = VOCAB - 1
"""The token whose embedding is spoiled: a prompt that holds it has no finite logits."""
HEALTHY = [[3, 1, 4], [1, 5, 9, 2], [6, 5]]
BAN = {POISON: -100.0}


@pytest.fixture(scope="module")
def spoiled() -> tuple[Target, Eagle3Draft]:
    target = tiny_target()
    embedding = target.embed_tokens.embedding
    embedding.set_value(embedding.get_value().at[POISON, 0].set(float("nan")))
    return target, tiny_draft(target)


@pytest.mark.parametrize("k", [0, 3])
def test_logits_that_are_not_finite_end_their_own_request(
    spoiled: tuple[Target, Eagle3Draft], k: int
) -> None:
    engine = Engine(*spoiled, sizes(k), eos_token_ids=())
    requests = [
        Request(f"{i}", p, SamplingParams(temperature=i % 2, max_tokens=12, seed=3, logit_bias=BAN))
        for i, p in enumerate(HEALTHY)
    ]
    sound = drive(engine, requests)
    bad = Request("bad", [2, POISON, 8], SamplingParams(max_tokens=12))
    answers = drive(engine, [requests[0], bad, *requests[1:]])
    failed = answers.pop("bad")
    assert failed.finish == ("error", "the model's logits are not finite")
    assert failed.token_ids == []
    assert {n: a.token_ids for n, a in answers.items()} == {
        n: a.token_ids for n, a in sound.items()
    }
    assert engine.stats().free_pages == engine.stats().total_pages


@pytest.mark.parametrize("in_kernel", [False, True], ids=["written", "in kernel"])
def test_a_failure_in_mid_answer_comes_at_the_same_token_with_and_without_drafts(
    spoiled: tuple[Target, Eagle3Draft], monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    """Biases let answers run into the spoiled token, which is itself still put out. Drafts propose
    it too, also where the target does not: what its rows hold may not reach those before them."""
    requests = [
        Request(
            f"{seed}, {bias}",
            [3, 1, 4 + seed],
            SamplingParams(seed=seed, max_tokens=20, logit_bias={POISON: bias}),
        )
        for seed in range(5)
        for bias in (1.0, 2.0, 3.0, 4.0)
    ]
    plain = drive(Engine(*spoiled, sizes(0), eos_token_ids=()), requests)
    monkeypatch.setattr("eagle3_jax.engine.programs.program.chooses_in_kernel", lambda: in_kernel)
    engine = Engine(*spoiled, sizes(3), eos_token_ids=())
    drafted = drive(engine, requests)
    kinds = {program.kind for program in engine._runner.executor.compiled if program.is_round}
    assert kinds == {ProgramKind.ARGMAX_ROUND if in_kernel else ProgramKind.FULL_ROUND}
    for name, answer in plain.items():
        failed = answer.finish[0] == "error"
        assert answer.token_ids.count(POISON) == failed == (answer.token_ids[-1] == POISON)
        assert (drafted[name].token_ids, drafted[name].finish) == (answer.token_ids, answer.finish)
    late = [a for a in plain.values() if a.finish[0] == "error" and len(a.token_ids) > 4]
    assert len(late) >= 3, "too few answers fail in their middle"


@pytest.mark.optimised
def test_rows_before_a_spoiled_one_of_their_chunk_keep_their_bits(
    spoiled: tuple[Target, Eagle3Draft],
) -> None:
    """Later prompts may find them in the prefix cache."""
    lab, stem = Lab(*spoiled, sizes(3)), [2, 7, 1, 4, 9]
    for slot, token in enumerate((POISON, 6)):
        lab.prefill(slot, [*stem, token, 8], one_row())
    bad, good = (lab.target_rows(slot, 7) for slot in (0, 1))
    np.testing.assert_array_equal(bad[:, :5], good[:, :5])
    assert np.isnan(bad[:, 5]).any() and np.isfinite(good).all()
    bad, good = (lab.draft_rows(slot, 4) for slot in (0, 1))
    np.testing.assert_array_equal(bad, good)


def test_options_that_bar_every_token_end_their_own_request(
    target: Target, draft: Eagle3Draft
) -> None:
    engine = Engine(target, draft, sizes(3), eos_token_ids=())
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
