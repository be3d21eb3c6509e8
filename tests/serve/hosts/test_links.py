"""Processes that meet, beat, and miss each other; threads stand in for processes."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from test_two_processes import free_ports

from serve.hosts.lead import Leader
from serve.hosts.link import Kind, Link, PeerLost
from serve.hosts.meet import gather, join
from serve.hosts.relay import relay
from serve.options.hosts import HostOptions

FACTS = {"jax": "0.10.2", "max_num_seqs": "8"}
SILENCE_S = 0.4


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.hosts.link.BEAT_S", 0.05)
    for module in ("link", "meet"):
        monkeypatch.setattr(f"serve.hosts.{module}.SILENCE_S", SILENCE_S)
    monkeypatch.setattr("serve.hosts.meet.MEET_S", 3.0)
    monkeypatch.setattr("serve.hosts.meet.HELLO_S", 0.5)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def of() -> Callable[[int], HostOptions]:
    """Options of one of three processes."""
    _, coordinator, calls = free_ports()
    return lambda process: HostOptions(("127.0.0.1", coordinator), calls, 3, process)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_processes_meet_in_any_order_and_strangers_are_sent_away(
    of: Callable[[int], HostOptions], threads: ThreadPoolExecutor, said: list[str]
) -> None:
    gathering = threads.submit(gather, of(0), FACTS, said.append)
    wait_for(lambda: said)
    with socket.create_connection(("127.0.0.1", of(0).plan_port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        joining = [threads.submit(join, of(process), FACTS) for process in (2, 1)]
        links = gathering.result(5)
    assert sorted(links) == [1, 2]
    for link in (*links.values(), *(follower.result(5) for follower in joining)):
        link.close()
    assert any("is no process of ours" in line for line in said)


@pytest.mark.parametrize(
    ("process", "facts", "reason"),
    [
        (1, {**FACTS, "jax": "0.10.1"}, r"process 1 .* differs in jax \(0.10.1 there, 0.10.2 in"),
        (1, {"jax": "0.10.2"}, r"differs in max_num_seqs \(none there, 8 in process 0\)"),
        (2, FACTS, r"process 2 .*: ids must be 1..2, each once"),
    ],
)
def test_who_differs_or_comes_twice_is_refused_and_all_are_told_why(
    of: Callable[[int], HostOptions],
    threads: ThreadPoolExecutor,
    said: list[str],
    process: int,
    facts: dict[str, str],
    reason: str,
) -> None:
    gathering = threads.submit(gather, of(0), FACTS, said.append)
    first = threads.submit(join, of(2), FACTS)
    wait_for(lambda: any("is here" in line for line in said))
    second = threads.submit(join, of(process), facts)
    for waiting in (gathering, first, second):
        with pytest.raises(ValueError, match=reason):
            waiting.result(5)


def test_who_stays_away_is_named(
    of: Callable[[int], HostOptions], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.hosts.meet.MEET_S", 0.1)
    with pytest.raises(ValueError, match=r"process 1, process 2 did not come to 127.0.0.1:"):
        gather(of(0), FACTS, said.append)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.create_server(("127.0.0.1", 0)), socket.socket()
    theirs.connect(ours.getsockname())
    accepted, _ = ours.accept()
    ours.close()
    with accepted, theirs:
        yield accepted, theirs


def test_beats_keep_idle_peers_and_plans_come_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    lost: list[str] = []
    frames: list[tuple[Kind, bytes]] = []
    ours, theirs = Link(pair[0], "process 1"), Link(pair[1], "process 0")
    ours.start(lambda *frame: None, lost.append)
    theirs.start(lambda *frame: frames.append(frame), lost.append)
    time.sleep(3 * SILENCE_S)
    for call in (b"a", b"", bytes(3_000_000)):
        ours.send(Kind.CALL, call)
    wait_for(lambda: len(frames) == 3)
    assert [payload for _, payload in frames] == [b"a", b"", bytes(3_000_000)] and not lost


@pytest.mark.parametrize(
    ("silent", "reason"), [(True, "silent for 0.4 s"), (False, "it closed the connection")]
)
def test_a_peer_that_is_silent_or_gone_ends_the_group_once_and_is_named(
    pair: tuple[socket.socket, socket.socket], said: list[str], silent: bool, reason: str
) -> None:
    leader = Leader({1: Link(pair[0], "process 1 (far:9)")}, said.append)
    ended: list[str] = []
    leader.on_end = ended.append
    compiling = threading.Thread(target=pytest.raises, args=(PeerLost, leader.await_compiled))
    compiling.start()
    if not silent:
        pair[1].close()
    wait_for(lambda: ended)
    compiling.join(2)
    assert not compiling.is_alive(), "nobody waits for a peer that is gone"
    assert len(ended) == 1 and ended[0].startswith(f"lost process 1 (far:9): {reason}")
    assert said == [f"error: {ended[0]}"]
    assert str(leader.explain(RuntimeError("a collective failed"))) == ended[0]
    with pytest.raises(PeerLost, match="lost process 1"):
        leader.send(b"plan")


def test_a_peer_is_let_go_when_the_leader_stops_and_may_ask_it_to(
    pair: tuple[socket.socket, socket.socket], said: list[str]
) -> None:
    leader = Leader({1: Link(pair[0], "process 1")}, said.append)
    asked, follower = threading.Event(), Link(pair[1], "process 0")
    leader.on_drain = asked.set
    leader.on_end = said.append
    follower.send(Kind.COMPILED)
    follower.send(Kind.DRAIN)
    leader.await_compiled()
    assert asked.wait(5)
    leader.send(b"plan")
    leader.stop()
    frames = [follower.receive() for _ in range(2)]
    assert [frame for frame in frames if frame[0] is not Kind.BEAT][-1] == (Kind.STOP, b"")
    pair[1].close()
    time.sleep(2 * SILENCE_S)
    assert said == ["process 1 was asked to stop; so do we"]


def test_a_relay_passes_bytes_on_and_stays_connected_when_its_target_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target:
        host, _, port = relay(target.getsockname()).partition(":")
        with socket.create_connection((host, int(port))) as near:
            far, _ = target.accept()
            near.sendall(b"there")
            assert far.recv(9) == b"there"
            far.sendall(b"and back")
            assert near.recv(9) == b"and back"
            far.close()
            near.settimeout(0.3)
            with pytest.raises(TimeoutError):
                near.recv(1)
