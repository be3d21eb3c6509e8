"""Which replica a request goes to: near its prompt's pages, evenly, and none is idle while others
queue."""

from dataclasses import replace
from typing import Any

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.replicas import Replicas
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams

CONFIG = EngineConfig(
    3,
    max_model_len=32,
    max_num_seqs=4,
    page_size=4,
    prefill_chunk=8,
    data_parallel_size=3,
)


def sequence(name: str, prompt: list[int] | None = None, **options: Any) -> Sequence:
    tokens = [ord(name[0]), 1, 2] if prompt is None else prompt
    return Sequence.of(Request(name, tokens, SamplingParams(seed=0, **options)), (), 32, None)


def added(replicas: Replicas, names: str) -> list[Sequence]:
    sequences = [sequence(name) for name in names]
    for one in sequences:
        replicas.add(one)
    return sequences


def prefill(replicas: Replicas) -> list[set[str]]:
    """Dispatches every chunk there is: whose ran together."""
    steps = []
    while chunks := replicas.next_chunks():
        steps.append({chunk.sequence.request.request_id for chunk in chunks})
        replicas.chunks_dispatched(chunks)
    return steps


def finish(replicas: Replicas, sequence: Sequence) -> None:
    sequence.finish("stop")
    replicas.of(sequence).remove(sequence)


def test_requests_spread_evenly_and_prompts_run_side_by_side() -> None:
    replicas = Replicas(CONFIG)
    assert [s.replica for s in added(replicas, "abcdefg")] == [0, 1, 2, 0, 1, 2, 0]
    assert prefill(replicas) == [{"a", "b", "c"}, {"d", "e", "f"}, {"g"}]
    assert len(replicas.round_members()) == 7


def test_a_request_goes_where_its_prompts_pages_are_unless_that_replica_is_far_ahead() -> None:
    replicas, prompt = Replicas(CONFIG), list(range(20))
    for name in "ab":
        replicas.add(sequence(name, prompt[::-1] if name == "a" else prompt))
    prefill(replicas)
    again = [sequence(f"c{i}", prompt) for i in range(3)]
    for one in again:
        replicas.add(one)
    # One more than the least busy replica has is near enough, two more are not.
    assert [one.replica for one in again] == [1, 2, 1]
    prefill(replicas)
    assert [one.cached.device if one.cached else 0 for one in again] == [16, 0, 16]


def test_a_replica_with_nothing_to_begin_takes_what_another_can_not_begin() -> None:
    replicas = Replicas(replace(CONFIG, data_parallel_size=2, max_num_seqs=1))
    first, second, third, fourth = added(replicas, "abcd")
    assert [s.replica for s in (first, second, third, fourth)] == [0, 1, 0, 1]
    assert prefill(replicas) == [{"a", "b"}]
    finish(replicas, second)
    finish(replicas, fourth)
    assert prefill(replicas) == [{"c"}], "it waits behind a, whose replica is full"
    assert third.replica == 1
    assert not replicas.leaves_slots_idle


def test_what_its_own_replica_can_begin_stays_there() -> None:
    replicas = Replicas(replace(CONFIG, data_parallel_size=2))
    (only,) = added(replicas, "a")
    assert prefill(replicas) == [{"a"}] and only.replica == 0


def test_who_is_preempted_is_the_youngest_of_the_replica_that_lacks_pages() -> None:
    few = replace(CONFIG, data_parallel_size=2, num_pages=11, max_num_seqs=2)
    replicas = Replicas(replace(few, enable_prefix_caching=False))
    for name, length in (("a", 9), ("b", 3), ("c", 9), ("d", 3)):
        replicas.add(sequence(name, list(range(length))))
    prefill(replicas)
    assert replicas.lacks_pages() is None
    for one in replicas.round_members():
        one.kv_len += 8 if one.request.request_id in "ac" else 0
    victim = replicas.lacks_pages()
    assert victim is not None and (victim.request.request_id, victim.replica) == ("c", 0)
    replicas.of(victim).preempt(victim)
    assert replicas.lacks_pages() is None


def test_in_exact_mode_prompts_that_are_scored_run_without_those_that_are_not() -> None:
    """Scoring is another program, and its neighbours' bits may not depend on that; both go on."""
    replicas = Replicas(replace(CONFIG, exact=True, data_parallel_size=2))
    for name, options in (("a", {}), ("b", {"prompt_logprobs": 1}), ("c", {}), ("d", {})):
        replicas.add(sequence(name, [*range(20), ord(name)], **options))
    steps = prefill(replicas)
    assert all(names == {"b"} or "b" not in names for names in steps)
    assert sum(names == {"b"} for names in steps) == 3 and steps.index({"b"}) < 2
