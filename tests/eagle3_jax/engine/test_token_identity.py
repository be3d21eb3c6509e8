"""Speculation, batching, arrival, preemption and neighbours' ends change no token."""

import pytest
from driving import Answer, drive, sizes
from tiny import REDUCED_IDS, latent_draft, reduced_draft

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target

SIZES = {
    "k0": sizes(0),
    "k1": sizes(1, page_size=16, num_pages=9),
    "k3": sizes(3),
    "k6": sizes(6, page_size=2, num_pages=60),
}
each_size = pytest.mark.parametrize("config", SIZES.values(), ids=SIZES)


def ready(target: Target, draft: Eagle3Draft | None, config: EngineConfig) -> Engine:
    engine = Engine(target, draft, config)
    return engine


def assert_same(answers: dict[str, Answer], plain: dict[str, Answer]) -> None:
    for name, answer in answers.items():
        assert answer.token_ids == plain[name].token_ids, name
        assert answer.finish == plain[name].finish


@each_size
@pytest.mark.parametrize("arrival_gap", [0, 3])
def test_batches_give_the_plain_tokens_across_preemption(
    target: Target,
    draft: Eagle3Draft,
    config: EngineConfig,
    arrival_gap: int,
    requests: list[Request],
    plain: dict[str, Answer],
) -> None:
    engine = ready(target, draft, config)
    answers = drive(engine, requests, arrival_gap=arrival_gap)
    assert_same(answers, plain)
    stats = engine.stats()
    assert stats.free_pages == stats.total_pages
    if arrival_gap == 0:
        assert stats.num_preemptions > 0
    if config.num_speculative_tokens:
        assert 0.2 < stats.num_accepted_tokens / stats.num_drafts


def test_a_batch_of_one_gives_the_plain_tokens(
    target: Target, draft: Eagle3Draft, requests: list[Request], plain: dict[str, Answer]
) -> None:
    engine = ready(target, draft, sizes(3, batch_buckets=(1, 4)))
    for request in requests:
        assert_same(drive(engine, [request]), plain)
    assert engine.stats().num_preemptions == 0


def test_cancelled_neighbours_change_nothing(
    target: Target, draft: Eagle3Draft, requests: list[Request], plain: dict[str, Answer]
) -> None:
    engine = ready(target, draft, sizes(3))
    cancel_at = {"request-1": 1, "request-2": 4, "request-4": 9, "request-7": 20}
    answers = drive(engine, requests, arrival_gap=1, cancel_at=cancel_at)
    for name in cancel_at:
        cancelled = answers.pop(name)
        assert cancelled.finish == ("abort", None)
        handed_out = cancelled.token_ids
        assert handed_out == plain[name].token_ids[: len(handed_out)]
    assert_same(answers, plain)
    stats = engine.stats()
    assert stats.free_pages == stats.total_pages
    assert not engine.has_work


def test_a_second_engine_with_the_same_seeds_says_the_same(
    target: Target, draft: Eagle3Draft, requests: list[Request]
) -> None:
    first, second = (drive(ready(target, draft, sizes(3)), requests) for _ in range(2))
    assert_same(first, second)
    assert {n: a.accepted for n, a in first.items()} == {n: a.accepted for n, a in second.items()}


def test_other_seeds_say_something_else(plain: dict[str, Answer], requests: list[Request]) -> None:
    sampled = [plain[r.request_id].token_ids for r in requests if r.sampling.temperature > 0]
    assert len({tuple(tokens) for tokens in sampled}) == len(sampled)


def test_a_draft_of_fewer_tokens_changes_nothing_and_is_still_accepted(
    target: Target, requests: list[Request], plain: dict[str, Answer]
) -> None:
    engine = ready(target, reduced_draft(target), sizes(3, num_pages=None))
    answers = drive(engine, requests)
    assert_same(answers, plain)
    assert engine.stats().num_accepted_tokens > 10
    for answer in answers.values():
        first = 1
        for accepted in answer.accepted:
            assert set(answer.token_ids[first : first + accepted]) <= set(REDUCED_IDS)
            first += accepted + 1


@pytest.mark.parametrize("k", [0, 3, 8])
def test_a_draft_with_latent_attention_changes_nothing_and_is_still_accepted(
    target: Target, requests: list[Request], plain: dict[str, Answer], k: int
) -> None:
    """Its cache is one more layer of latents, under the same pages and preemptions."""
    engine = ready(target, latent_draft(target), sizes(k))
    assert_same(drive(engine, requests), plain)
    stats = engine.stats()
    assert stats.free_pages == stats.total_pages
    assert stats.num_preemptions > 0
    assert not k or 0.2 < stats.num_accepted_tokens / stats.num_drafts


def test_a_reused_slot_remembers_nothing(
    target: Target, draft: Eagle3Draft, requests: list[Request], plain: dict[str, Answer]
) -> None:
    """Greedy after sampled and short after long, in the same slot."""
    engine = ready(target, draft, sizes(3))
    for request in [requests[3], requests[0], requests[1], requests[0]]:
        assert_same(drive(engine, [request]), plain)
