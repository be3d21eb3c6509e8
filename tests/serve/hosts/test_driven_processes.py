"""Processes that all follow one without devices; threads stand in for them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from eagle3_jax.engine.programs.messages import (
    PendingQuery,
    from_bytes,
    output_query,
    to_bytes,
)
from eagle3_jax.engine.programs.remote import Devices, EngineInfo
from serve.hosts.drive import drive
from serve.hosts.follow import Follower
from serve.hosts.messages import Kind, PeerLost, connect, info_to_json
from serve.hosts.rendezvous import join
from serve.options.hosts import DRIVER, HostOptions

FACTS = {"jax": "0.10.2", "max_num_seqs": "8"}
ENGINE_INFO = EngineInfo(24, "xla", 0, ("prefill", "round of 8"))
Of = Callable[[int], HostOptions]
pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("of", [True], indirect=True)
def test_who_has_no_devices_asks_process_0_alone(
    of: Of, threads: ThreadPoolExecutor, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes both follow; answers may overtake each other."""
    left: list[int] = []
    monkeypatch.setattr("serve.hosts.follow.exit_now", left.append)
    ours = replace(of(DRIVER), num_processes=2, driven=True)
    leading = threads.submit(drive, ours, FACTS, said.append, lambda: None)
    dealers = [connect(replace(ours, process_id=process)) for process in range(2)]
    met = [
        threads.submit(join, dealer, replace(ours, process_id=process), FACTS)
        for process, dealer in enumerate(dealers)
    ]
    first, second = (
        Follower(dealer, name.result(10), said.append)
        for dealer, name in zip(dealers, met, strict=True)
    )
    first.notify_leader("loading")
    second.send(Kind.ENGINE_INFO, info_to_json(ENGINE_INFO._replace(num_pages=9)))
    first.send(Kind.ENGINE_INFO, info_to_json(ENGINE_INFO))
    leader = leading.result(10)
    assert isinstance(leader, Devices) and leader.info == ENGINE_INFO and "loading" in said
    leader.send(b"call")
    waiting = [leader.ask(output_query(place)) for place in range(2)]
    calls = first.calls()
    assert next(calls) == b"call"
    asked = [next(calls) for _ in waiting]
    for number, question in reversed([*enumerate(asked)]):
        assert isinstance(question, PendingQuery) and question.question == output_query(number)
        question.answer(to_bytes(np.full((2, number + 1), number, np.int32)))
    assert [from_bytes(wait()).shape for wait in waiting] == [(2, 1), (2, 2)]
    leader.ask(output_query(0))  # Nobody reads it.
    read = leader.ask(output_query(1))
    for _ in range(2):
        question = next(calls)
        assert isinstance(question, PendingQuery)
        question.answer(question.question)
    assert read() == output_query(1)
    assert not leader._replies, "nothing is kept of what nobody reads"  # pyright: ignore[reportPrivateUsage]
    assert next(second.calls()) == b"call"
    unanswered = leader.ask(output_query(0))
    first._enqueue(None)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(PeerLost, match="lost process 0"):
        unanswered()
    second._enqueue(None)  # pyright: ignore[reportPrivateUsage]
    for follower in (first, second):
        follower._thread.join(5)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("of", [False], indirect=True)
def test_a_process_that_ends_before_it_is_heard_ends_the_wait(of: Of, said: list[str]) -> None:
    ours = replace(of(DRIVER), num_processes=2, driven=True)
    with pytest.raises(ValueError, match="process 1 ended with status 2"):
        drive(ours, FACTS, said.append, lambda: "process 1 ended with status 2")
