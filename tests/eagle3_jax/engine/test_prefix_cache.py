"""Reused pages hold what a prefill would write, so no token and no acceptance depends on them."""

from dataclasses import replace

import numpy as np
import pytest
from driving import Answer, drive, sizes
from tiny import VOCAB

from eagle3_jax.cache import rows_and_scale
from eagle3_jax.engine import Engine, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

STEM = [(11 * i * i + 5) % VOCAB for i in range(18)]
KINDS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.0, top_k=12),
)
ATOL = 1e-5
both_drafts = pytest.mark.parametrize("draft", ["grouped", "latent"], indirect=True)


def alike(count: int) -> list[Request]:
    """Greedy and sampled requests behind one stem: all of it, or its beginning."""
    return [
        Request(
            f"{i}",
            [*STEM[: 18 - 5 * (i % 3)], *[(i * 7 + j) % VOCAB for j in range(i % 4)]],
            replace(KINDS[i % len(KINDS)], seed=i, max_tokens=24 + 3 * (i % 4)),
        )
        for i in range(count)
    ]


def one_by_one(engine: Engine, requests: list[Request]) -> dict[str, Answer]:
    """Each alone: nobody is preempted."""
    answers: dict[str, Answer] = {}
    for request in requests:
        answers |= drive(engine, [request])
    assert engine.stats().num_preemptions == 0
    return answers


def assert_same(answers: dict[str, Answer], others: dict[str, Answer]) -> None:
    for name, answer in answers.items():
        assert answer.token_ids == others[name].token_ids, name
        assert answer.finish == others[name].finish


def rows(engine: Engine, request: Request, length: int) -> list[np.ndarray]:
    """The rows of a request's first positions in every pool, target's pools first, read while the
    request runs; then it is cancelled."""
    engine.add(request)
    while not engine.step():
        pass
    pages = engine._sequences[request.request_id].pages
    state = engine._runner.executor.state
    stored = [rows_and_scale(pool)[0] for pool in (*state.target_pools, *state.draft_pools)]
    pools = [np.array(array)[pages] for array in stored]
    engine.cancel(request.request_id)
    while engine.has_work:
        engine.step()
    return [pool.reshape(-1, *pool.shape[2:])[:length] for pool in pools]


@both_drafts
def test_reused_rows_are_those_that_a_prefill_writes(target: Target, draft: Eagle3Draft) -> None:
    """In the pools of target and draft: of a prompt, and of an answer, which rounds wrote."""
    warm = Engine(target, draft, sizes(3))
    cold = Engine(target, draft, sizes(3, enable_prefix_caching=False))
    greedy = replace(KINDS[0], max_tokens=20)
    answer = drive(warm, [Request("a", STEM, greedy)])["a"]
    talk = Request("b", [*STEM, *answer.token_ids, 1], greedy)
    length = len(talk.prompt_ids) - 1
    reused, fresh = (rows(engine, talk, length) for engine in (warm, cold))
    assert warm.stats().prefix_cache_hits > len(STEM)
    for one, other in zip(reused, fresh, strict=True):
        np.testing.assert_allclose(one, other, atol=ATOL)


@pytest.mark.optimised
def test_exact_mode_reads_the_bits_it_would_have_written(
    target: Target, draft: Eagle3Draft
) -> None:
    """Rows, tokens and acceptance; a conversation reuses its prompt, not what rounds wrote."""
    exact = sizes(3, exact=True)
    warm = Engine(target, draft, exact)
    cold = Engine(target, draft, replace(exact, enable_prefix_caching=False))
    expected = one_by_one(cold, alike(6))
    for _ in range(2):
        answers = drive(warm, alike(6), arrival_gap=2)
        assert_same(answers, expected)
        assert [a.accepted for a in answers.values()] == [a.accepted for a in expected.values()]
    talk = Request("talk", [*STEM, *expected["0"].token_ids, 1], KINDS[0])
    length, known = len(talk.prompt_ids) - 1, warm.stats().prefix_cache_hits
    for one, other in zip(rows(warm, talk, length), rows(cold, talk, length), strict=True):
        np.testing.assert_array_equal(one, other)
    assert warm.stats().prefix_cache_hits - known == 16, "two chunks of the first prompt"
