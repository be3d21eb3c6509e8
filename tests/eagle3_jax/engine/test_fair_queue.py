"""Clients share slots: a newcomer's prompt begins within a bounded number of rounds."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import VOCAB, SimulatedRunner, simulated_pair

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.fair_queue import ROUNDS_BETWEEN_PREEMPTIONS, TURN_TOKENS, FairQueue
from eagle3_jax.engine.programs.runner import RowReport
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams

CHUNK = 8


class InstantRunner(SimulatedRunner):
    """Answers every program with one token for each sequence."""

    def prefill(self, chunks: Any, masks: object = None) -> list[RowReport]:
        return [RowReport([1], 0) for chunk in chunks if chunk.last]

    def round(self, members: Any, drafts: int, limits: Any = None) -> list[RowReport]:
        return [RowReport([1], 0) for _ in members]

    def read(self, report: list[RowReport]) -> list[RowReport]:
        return report


@dataclass
class Job:
    """A request, and the steps in which it arrived, began its prompt and ended."""

    client: str
    arrives: int = 0
    num_tokens: int = 3
    prompt: int = 5
    began: int = -1
    ended: int = -1

    @property
    def waited(self) -> int:
        return self.began - self.arrives


def config(slots: int, **changes: Any) -> EngineConfig:
    sizes: dict[str, Any] = {"max_model_len": 1024, "page_size": 16, "prefill_chunk": CHUNK}
    return EngineConfig(0, max_num_seqs=slots, **sizes | changes)


def run(jobs: list[Job], sizes: EngineConfig) -> int:
    """Run all jobs and note their steps in them. Return the number of steps."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        target, _ = simulated_pair(monkeypatch)
        monkeypatch.setattr("eagle3_jax.engine.engine.Runner", InstantRunner)
        engine = Engine(target, None, sizes)
    pending, step = sorted(range(len(jobs)), key=lambda i: jobs[i].arrives), 0
    while pending or engine.has_work:
        while pending and jobs[pending[0]].arrives <= step:
            number = pending.pop(0)
            job = jobs[number]
            sampling = SamplingParams(max_tokens=job.num_tokens, seed=number)
            ids = [1 + number % (VOCAB - 1)] * job.prompt
            engine.add(Request(f"{number}", ids, sampling, client=job.client))
        for output in engine.step():
            jobs[int(output.request_id)].ended = step if output.finish_reason else -1
        for name in engine.started:
            jobs[int(name)].began = step
        step += 1
        assert step < 200_000, "the engine makes no progress"
    return step


@pytest.mark.parametrize(("slots", "exact"), [(2, True), (8, False)])
def test_128_choices_of_one_client_keep_no_other_waiting(slots: int, exact: bool) -> None:
    neighbours = [Job(f"{i}", arrives=200) for i in range(slots - 1)]
    jobs = [*(Job("hog", num_tokens=300) for _ in range(128)), *neighbours]
    run(jobs, config(slots, exact=exact))
    waited = sorted(job.waited for job in neighbours)
    bounds = [ROUNDS_BETWEEN_PREEMPTIONS * i + 1 for i in range(len(waited))]
    assert all(found <= most for found, most in zip(waited, bounds, strict=True)), waited


@pytest.mark.parametrize("exact", [False, True])
def test_clients_take_turns_on_a_slot_that_is_too_few(exact: bool) -> None:
    jobs = [Job("hog", num_tokens=950), Job("hog", num_tokens=950), Job("near", 300), Job("far", 9)]
    run(jobs, config(1, exact=exact))
    assert jobs[2].waited <= 2 * ROUNDS_BETWEEN_PREEMPTIONS
    assert jobs[3].waited <= TURN_TOKENS
    assert jobs[0].ended < jobs[1].began


def test_turns_cost_at_most_twice_the_rounds_of_the_answers() -> None:
    """Even in exact mode, where each turn generates its answer again from the start."""
    jobs = [Job(client, num_tokens=600) for client in "abcd"]
    steps = run(jobs, config(1, exact=True))
    assert steps <= 3 * 4 * 600
    assert min(job.ended for job in jobs) >= 2 * 600, "the clients took no turns"


def test_slots_are_divided_evenly_and_long_prompts_chunk_by_chunk() -> None:
    """Three clients get two of six slots each, and a short prompt does not wait for a long one."""
    jobs = [Job(client, num_tokens=400, prompt=5) for client in "aaaaaaaabbbbcccc"]
    run(jobs, config(6))
    last = max(job.began for job in jobs if job.began < 100)
    running = [job.client for job in jobs if job.began <= last and job.ended > last]
    assert {client: running.count(client) for client in "abc"} == {"a": 2, "b": 2, "c": 2}
    long, short = Job("a", prompt=CHUNK * 100), Job("b", arrives=10)
    run([long, short], config(6))
    assert short.waited <= 1 and long.ended > 100 > short.ended


def test_one_client_is_served_as_if_there_were_no_queues() -> None:
    """First come, first served, without a preemption, whatever the client is called."""
    jobs = [Job("", 3 * (i // 5), num_tokens=10 + 7 * (i % 9), prompt=1 + i) for i in range(60)]
    again = [replace(job, client="a") for job in jobs]
    assert run(jobs, config(4)) == run(again, config(4))
    assert [job.began for job in jobs] == [job.began for job in again]
    assert [job.began for job in jobs] == sorted(job.began for job in jobs)


def bound(others: int, slots: int) -> int:
    """Return the rounds within which a newcomer's short prompt begins, outside exact mode."""
    turns = -(-others // slots) if others >= slots else 0
    return (ROUNDS_BETWEEN_PREEMPTIONS + 1) * (others + 1) + turns * (TURN_TOKENS + 3 * others)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Job]:
    clients = st.sampled_from("abcdef"[: draw(st.integers(1, 6))])
    jobs = st.builds(
        Job, clients, st.integers(0, 200), st.integers(1, 150), st.integers(1, 3 * CHUNK)
    )
    hogs = [Job("a", num_tokens=300) for _ in range(draw(st.integers(0, 8)))]
    return [*hogs, *draw(st.lists(jobs, min_size=1, max_size=20))]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(arrivals(), st.integers(1, 5), st.booleans())
def test_a_newcomer_begins_within_the_bound_and_every_client_is_served_in_order(
    jobs: list[Job], slots: int, exact: bool
) -> None:
    run(jobs, config(slots, exact=exact))
    lines = defaultdict(list)
    for job in sorted(jobs, key=lambda job: job.arrives):
        lines[job.client].append(job)
    others = len(lines) - 1
    for line in lines.values():
        assert [job.began for job in line] == sorted(job.began for job in line)
        for job in line:
            busy = any(o.arrives <= job.arrives <= o.ended for o in line if o is not job)
            replays = exact and others >= slots
            assert busy or replays or job.waited <= bound(others, slots), job


def test_rounds_lie_between_two_preemptions() -> None:
    queue, sizes = FairQueue(config(2)), (2, 3)
    for client, count in zip("ab", sizes, strict=True):
        for index in range(count):
            request = Request(f"{client}{index}", [1], SamplingParams(), client=client)
            queue.append(Sequence.of(request, (), 64, None))
    owed = [sequence for sequence in queue if sequence.request.client == "b"]
    for sequence in owed[:2]:
        queue.admit(sequence)
    assert queue.to_preempt(lambda sequence: True) is owed[1]
    queue.release(owed[1], waits=True)
    queue.admit(owed[1])
    for _ in range(ROUNDS_BETWEEN_PREEMPTIONS):
        assert queue.to_preempt(lambda sequence: True) is None
        queue.count_round()
    assert queue.to_preempt(lambda sequence: True) is owed[1]
