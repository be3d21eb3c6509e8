"""Admission, prefill order, page cover and preemption, without any program."""

import pytest

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.scheduler import Scheduler
from eagle3_jax.engine.sequence import Sequence, Status
from eagle3_jax.sampling.params import SamplingParams

K = 3


def scheduler(num_pages: int, max_num_seqs: int = 3, page_size: int = 4) -> Scheduler:
    return Scheduler(
        EngineConfig(
            K,
            max_model_len=32,
            max_num_seqs=max_num_seqs,
            page_size=page_size,
            num_pages=num_pages,
            prefill_chunk=8,
            enable_prefix_caching=False,
        )
    )


def sequence(name: str, prompt: int, most: int | None = None) -> Sequence:
    sampling = SamplingParams(max_tokens=most, seed=0)
    return Sequence.of(Request(name, list(range(prompt)), sampling), (), 32, None)


def prefill(work: Scheduler) -> list[tuple[str, int, int]]:
    """Dispatches every chunk there is."""
    chunks = []
    while (chunk := work.next_chunk()) is not None:
        chunks.append((chunk.sequence.request.request_id, chunk.start, chunk.length))
        work.chunk_dispatched(chunk)
    return chunks


def test_prompts_are_prefilled_in_order_of_arrival_in_chunks_of_one_grid() -> None:
    work = scheduler(25)
    for name, prompt in (("a", 19), ("b", 8), ("c", 3)):
        work.add(sequence(name, prompt))
    assert prefill(work) == [("a", 0, 8), ("a", 8, 8), ("a", 16, 3), ("b", 0, 8), ("c", 0, 3)]
    assert [s.kv_len for s in work.round_members()] == [19, 8, 3]


def test_whoever_comes_first_is_not_overtaken_by_one_that_would_fit() -> None:
    work = scheduler(10)
    for name, prompt in (("big", 20), ("bigger", 24), ("small", 1)):
        work.add(sequence(name, prompt))
    assert {name for name, *_ in prefill(work)} == {"big"}
    assert [s.request.request_id for s in work.waiting] == ["bigger", "small"]


@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
def test_a_dispatch_covers_the_known_length_and_two_rounds(page_size: int) -> None:
    work = scheduler(50, page_size=page_size)
    work.add(sequence("a", 7))
    prefill(work)
    (member,) = work.round_members()
    for kv_len in range(7, 31):
        member.kv_len = kv_len
        assert work.cover(member)
        needed = min(kv_len + 2 * (K + 1), member.limit)
        assert (len(member.pages) - 1) * page_size < needed <= len(member.pages) * page_size


def test_no_more_pages_than_the_answer_may_fill() -> None:
    work = scheduler(25)
    work.add(sequence("a", 3, most=2))
    prefill(work)
    assert len(work.admitted[0].pages) == 2


def test_the_youngest_is_preempted_and_comes_back_first() -> None:
    work = scheduler(17)
    for name in "abcd":
        work.add(sequence(name, 5))
    prefill(work)
    victim = work.waiting.youngest
    work.preempt(victim)
    assert (victim.request.request_id, victim.status, [*victim.pages]) == ("c", Status.WAITING, [])
    assert [name for name, *_ in prefill(work)] == ["c"]
    assert work.num_preemptions == 1


def test_a_preempted_answer_is_prefilled_with_its_prompt_or_replayed() -> None:
    recomputed, replayed = sequence("a", 5), sequence("b", 5)
    for one, exact in ((recomputed, False), (replayed, True)):
        one.append(7)
        one.append(8)
        one.rewind(exact=exact)
    assert (recomputed.prefill_ids[-2:], recomputed.replay) == ([7, 8], 0)
    assert (replayed.prefill_ids, replayed.replay) == (list(range(5)), 2)
    replayed.append(7)
    with pytest.raises(RuntimeError, match="expected token 8, got 9"):
        replayed.append(9)


def test_rounds_in_flight_that_must_reach_the_limit_are_enough() -> None:
    work = scheduler(25)
    work.add(sequence("a", 3, most=3))
    prefill(work)
    (member,) = work.round_members()
    member.rounds_in_flight = 1
    assert work.round_members() == [member]
    member.rounds_in_flight = 2
    assert work.round_members() == []
