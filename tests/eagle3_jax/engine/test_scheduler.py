"""Admission, prefill order, page cover, preemption and replicas, without any program."""

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from driving import drive, sizes
from simulated_device import VOCAB, simulated_pair

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.engine import MOST_CHUNKS
from eagle3_jax.engine.replicas import Replicas
from eagle3_jax.engine.scheduler import Scheduler
from eagle3_jax.engine.sequence import Sequence, Status
from eagle3_jax.sampling.params import SamplingParams

K = 3


SIZES = EngineConfig(
    K, max_model_len=32, max_num_seqs=3, page_size=4, prefill_chunk=8, enable_prefix_caching=False
)


def scheduler(num_pages: int, page_size: int = 4) -> Scheduler:
    return Scheduler(replace(SIZES, page_size=page_size, num_pages=num_pages))


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


def requests(count: int, prompt: int) -> list[Request]:
    rows = [[(i + j) % VOCAB for j in range(prompt)] for i in range(count)]
    return [
        Request(f"{i}", row, SamplingParams(max_tokens=20, ignore_eos=True))
        for i, row in enumerate(rows)
    ]


def chunks_before_rounds(
    monkeypatch: pytest.MonkeyPatch, waiting: list[Request], max_num_seqs: int
) -> list[int]:
    """Count the chunks before each round while there are chunks."""
    target, draft = simulated_pair(monkeypatch)
    config = sizes(3, num_pages=None, max_num_seqs=max_num_seqs, batch_buckets=(max_num_seqs,))
    engine = Engine(target, draft, config)
    runner, ran = engine._runner, []
    prefill, run_round = runner.prefill, runner.round
    monkeypatch.setattr(runner, "prefill", lambda c, _: (ran.append("chunk"), prefill(c))[1])
    monkeypatch.setattr(runner, "round", lambda *of: (ran.append("round"), run_round(*of))[1])
    drive(engine, waiting)
    return [len(list(run)) for kind, run in groupby(ran) if kind == "chunk"]


def test_several_prompts_are_prefilled_at_once_while_slots_are_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve slots: three times four chunks, and then one whenever an answer ends."""
    counts = chunks_before_rounds(monkeypatch, requests(12, 5), max_num_seqs=12)
    assert counts == [MOST_CHUNKS] * 3


def test_prompts_that_wait_for_a_slot_come_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = chunks_before_rounds(monkeypatch, requests(6, 5), max_num_seqs=2)
    assert counts[0] == 2 and max(counts) <= 2


THREE = EngineConfig(
    3,
    max_model_len=32,
    max_num_seqs=4,
    page_size=4,
    prefill_chunk=8,
    data_parallel_size=3,
)


def of_tokens(name: str, prompt: list[int] | None = None, **options: Any) -> Sequence:
    tokens = [ord(name[0]), 1, 2] if prompt is None else prompt
    return Sequence.of(Request(name, tokens, SamplingParams(seed=0, **options)), (), 32, None)


def added(replicas: Replicas, names: str) -> list[Sequence]:
    sequences = [of_tokens(name) for name in names]
    for one in sequences:
        replicas.add(one)
    return sequences


def prefill_together(replicas: Replicas) -> list[set[str]]:
    """Dispatches every chunk there is: whose ran together."""
    steps = []
    while chunks := replicas.next_chunks():
        steps.append({chunk.sequence.request.request_id for chunk in chunks})
        for chunk in chunks:
            replicas.of(chunk.sequence).chunk_dispatched(chunk)
    return steps


def finish(replicas: Replicas, sequence: Sequence) -> None:
    sequence.finish("stop")
    replicas.of(sequence).remove(sequence)


def test_requests_spread_evenly_and_prompts_run_side_by_side() -> None:
    replicas = Replicas(THREE)
    assert [s.replica for s in added(replicas, "abcdefg")] == [0, 1, 2, 0, 1, 2, 0]
    assert prefill_together(replicas) == [{"a", "b", "c"}, {"d", "e", "f"}, {"g"}]
    assert len(replicas.round_members()) == 7


def test_a_request_goes_where_its_prompts_pages_are_unless_that_replica_is_far_ahead() -> None:
    replicas, prompt = Replicas(THREE), list(range(20))
    for name in "ab":
        replicas.add(of_tokens(name, prompt[::-1] if name == "a" else prompt))
    prefill_together(replicas)
    again = [of_tokens(f"c{i}", prompt) for i in range(3)]
    for one in again:
        replicas.add(one)
    # One more than the least busy replica has is near enough, two more are not.
    assert [one.replica for one in again] == [1, 2, 1]
    prefill_together(replicas)
    assert [one.cached.device if one.cached else 0 for one in again] == [16, 0, 16]


def test_a_replica_with_nothing_to_begin_takes_what_another_can_not_begin() -> None:
    replicas = Replicas(replace(THREE, data_parallel_size=2, max_num_seqs=1))
    first, second, third, fourth = added(replicas, "abcd")
    assert [s.replica for s in (first, second, third, fourth)] == [0, 1, 0, 1]
    assert prefill_together(replicas) == [{"a", "b"}]
    finish(replicas, second)
    finish(replicas, fourth)
    assert prefill_together(replicas) == [{"c"}], "it waits behind a, whose replica is full"
    assert third.replica == 1
    assert not replicas.has_idle_slots


def test_who_is_preempted_is_the_youngest_of_the_replica_that_lacks_pages() -> None:
    few = replace(THREE, data_parallel_size=2, num_pages=11, max_num_seqs=2)
    replicas = Replicas(replace(few, enable_prefix_caching=False))
    for name, length in (("a", 9), ("b", 3), ("c", 9), ("d", 3)):
        replicas.add(of_tokens(name, list(range(length))))
    prefill_together(replicas)
    assert replicas.lacks_pages() is None
    for one in replicas.round_members():
        one.kv_len += 8 if one.request.request_id in "ac" else 0
    victim = replicas.lacks_pages()
    assert victim is not None and (victim.request.request_id, victim.replica) == ("c", 0)
    replicas.of(victim).preempt(victim)
    assert replicas.lacks_pages() is None


def test_in_exact_mode_prompts_that_are_scored_run_without_those_that_are_not() -> None:
    """Scoring is another program, and its neighbours' bits may not depend on that; both go on."""
    replicas = Replicas(replace(THREE, exact=True, data_parallel_size=2))
    for name, options in (("a", {}), ("b", {"prompt_logprobs": 1}), ("c", {}), ("d", {})):
        replicas.add(of_tokens(name, [*range(20), ord(name)], **options))
    steps = prefill_together(replicas)
    assert all(names == {"b"} or "b" not in names for names in steps)
    assert sum(names == {"b"} for names in steps) == 3 and steps.index({"b"}) < 2
