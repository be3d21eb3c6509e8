"""Processes that meet, talk, and miss each other; threads stand in for processes."""

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from malformed_hellos import malformed
from probe import wait_for
from several_processes import written_key

from serve.hosts import messages
from serve.hosts.facts import Facts
from serve.hosts.follow import Follower
from serve.hosts.lead import Leader
from serve.hosts.messages import Kind, Listener, PeerLost, await_free, connect
from serve.hosts.rendezvous import gather, join
from serve.options.hosts import HostOptions, read_key

FACTS = {"jax": "0.10.2", "max_num_seqs": "8"}
Of = Callable[[int], HostOptions]
pytestmark = pytest.mark.usefixtures("impatient")


@contextmanager
def stranger_at(hosts: HostOptions) -> Iterator[zmq.Socket[bytes]]:
    """Speaks ZeroMQ and is no process of ours."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://{hosts.calls_at}")
        yield dealer


def gathered(hosts: HostOptions, said: list[str]) -> list[int]:
    with closing(Listener(hosts)) as listener:
        return sorted(gather(listener.socket, hosts, FACTS, said.append))


def joined(hosts: HostOptions, facts: Facts = FACTS) -> str:
    dealer = connect(hosts)
    try:
        return join(dealer, hosts, facts)
    finally:
        dealer.context.destroy(linger=0)


def test_processes_meet_in_any_order_and_strangers_are_passed_over(
    of: Of, threads: ThreadPoolExecutor, said: list[str]
) -> None:
    late = threads.submit(joined, of(2))
    gathering = threads.submit(gathered, of(0), said)
    wait_for(lambda: said)
    with (
        socket.create_connection(("127.0.0.1", of(0).plan_port)) as stranger,
        stranger_at(of(0)) as dealer,
    ):
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for words in malformed(60):
            dealer.send_multipart(words)
        assert late.done() is False
        assert threads.submit(joined, of(1)).result(10) == late.result(10)
    assert gathering.result(10) == [1, 2]


@pytest.mark.parametrize("of", [False], indirect=True)
@pytest.mark.parametrize(
    ("process", "facts", "reason"),
    [
        (1, {**FACTS, "jax": "0.10.1"}, r"process 1 .* differs in jax \(0.10.1 there, 0.10.2 in"),
        (1, {"jax": "0.10.2"}, r"differs in max_num_seqs \(none there, 8 in process 0\)"),
        (2, FACTS, r"process 2 .*: ids must be 1..2, each once"),
    ],
)
def test_who_differs_or_comes_twice_is_refused_and_all_are_told_why(
    of: Of,
    threads: ThreadPoolExecutor,
    said: list[str],
    process: int,
    facts: dict[str, str],
    reason: str,
) -> None:
    gathering = threads.submit(gathered, of(0), said)
    first = threads.submit(joined, of(2))
    wait_for(lambda: any("is here" in line for line in said))
    second = threads.submit(joined, of(process), facts)
    # The socket is closed with last words on their way.
    for waiting in (first, second, gathering):
        with pytest.raises(ValueError, match=reason):
            waiting.result(10)


def test_who_stays_away_is_named(of: Of, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.hosts.rendezvous.MEET_S", 0.1)
    with pytest.raises(ValueError, match=r"process 1, process 2 did not connect to 127.0.0.1:"):
        gathered(of(0), said)
    with pytest.raises(PeerLost, match=r"process 0 .* can't be reached in 0.1 s"):
        joined(of(1))


@pytest.mark.parametrize("of", [True], indirect=True)
def test_who_has_another_key_or_none_is_refused_and_changes_nothing(
    of: Of, threads: ThreadPoolExecutor, said: list[str], tmp_path: Path
) -> None:
    gathering = threads.submit(gathered, of(0), said)
    for key in (written_key(tmp_path / "other"), None):
        with pytest.raises(ValueError, match="has another key"):
            joined(replace(of(1), key_file=key))
    assert said == [f"process 0: waiting for the others at {of(0).calls_at}"]
    joining = [threads.submit(joined, of(process)) for process in (1, 2)]
    assert gathering.result(10) == [1, 2]
    assert [follower.result(10) for follower in joining]


def test_a_port_is_waited_for_and_named_when_it_stays_taken(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.hosts.messages.FREE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"can't listen on {address}: Address already in use"):
            await_free(address)
        waiting = threads.submit(await_free, address)
    assert waiting.result(5) is None


@pytest.fixture
def pair(
    of: Of, threads: ThreadPoolExecutor, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Leader, Follower]]:
    """A process that leads another."""
    ended: list[int] = []
    for module in ("lead", "follow"):
        monkeypatch.setattr(f"serve.hosts.{module}.exit_now", ended.append)
    options = [replace(of(process), num_processes=2) for process in range(2)]
    listener, dealer = Listener(options[0]), connect(options[1])
    gathering = threads.submit(gather, listener.socket, options[0], FACTS, said.append)
    name = join(dealer, options[1], FACTS)
    leader = Leader(listener, gathering.result(10), said.append)
    said.clear()
    follower = Follower(dealer, name, said.append)
    yield leader, follower
    leader.stop()
    follower._enqueue(None)  # pyright: ignore[reportPrivateUsage]
    follower._thread.join(5)  # pyright: ignore[reportPrivateUsage]
    dealer.context.destroy(linger=0)


def test_calls_come_in_order_whatever_strangers_send(pair: tuple[Leader, Follower], of: Of) -> None:
    leader, follower = pair
    follower.send(Kind.COMPILED)
    leader.await_compiled()
    with stranger_at(of(0)) as stranger:
        for number, frames in enumerate(malformed(1000)):
            with suppress(zmq.Again):  # Without a key it is sent away.
                stranger.send_multipart(frames, zmq.NOBLOCK)
            if number % 10 == 0:
                with socket.create_connection(("127.0.0.1", of(0).plan_port)) as raw:
                    raw.sendall(os.urandom(100))
        sent = [b"a", b"", bytes(3_000_000), *(b"%d" % i for i in range(100))]
        for call in sent:
            leader.send(call)
        calls = follower.calls()
        assert [next(calls) for _ in sent] == sent


def test_sockets_beat_and_let_in_who_has_the_key_alone(of: Of) -> None:
    with closing(Listener(of(0))) as listener:
        options = zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT
        beats = [listener.socket.getsockopt(option) for option in options]
    assert beats == [messages.BEAT_MS, messages.SILENCE_MS]
    known = messages._KeyAuthenticator(b"ours")
    assert known.callback("any", b"ours") and not known.callback("any", b"theirs")


@pytest.mark.parametrize("of", [True], indirect=True)
def test_beats_keep_peers_that_say_nothing_and_hold_the_interpreter(
    pair: tuple[Leader, Follower], said: list[str]
) -> None:
    """Compiling may do so for longer than the longest silence."""
    leader, follower = pair
    ctypes.PyDLL(None).usleep(ctypes.c_uint(2_500_000))
    leader.send(b"call")
    assert next(follower.calls()) == b"call"
    assert not said


@pytest.mark.parametrize("of", [False], indirect=True)
def test_a_peer_that_is_gone_ends_the_group_once_and_is_named(
    pair: tuple[Leader, Follower], said: list[str]
) -> None:
    leader, follower = pair
    ended: list[str] = []
    leader.on_end = ended.append
    compiling = threading.Thread(target=pytest.raises, args=(PeerLost, leader.await_compiled))
    compiling.start()
    follower._enqueue(None)  # pyright: ignore[reportPrivateUsage]
    wait_for(lambda: ended)
    compiling.join(2)
    assert not compiling.is_alive(), "nobody waits for a peer that is gone"
    assert len(ended) == 1 and ended[0].startswith("lost process 1 (127.0.0.1): its connection")
    assert said == [f"error: {ended[0]}"]
    assert str(leader.explain(RuntimeError("a collective failed"))) == ended[0]
    with pytest.raises(PeerLost, match="lost process 1"):
        leader.send(b"plan")


@pytest.mark.parametrize("of", [False], indirect=True)
def test_a_peer_is_let_go_when_the_leader_stops_and_may_ask_it_to(
    pair: tuple[Leader, Follower], said: list[str]
) -> None:
    leader, follower = pair
    asked = threading.Event()
    leader.on_drain, leader.on_end = asked.set, said.append
    follower.send(Kind.COMPILED)
    follower.send(Kind.DRAIN)
    leader.await_compiled()
    assert asked.wait(5)
    leader.send(b"plan")
    leader.stop()
    assert list(follower.calls()) == [b"plan"]
    time.sleep(0.3)
    assert said == ["process 1 (127.0.0.1) was asked to stop; so do we"]


@pytest.mark.parametrize("of", [False], indirect=True)
def test_why_a_process_failed_is_told(pair: tuple[Leader, Follower], said: list[str]) -> None:
    leader, follower = pair
    ended: list[str] = []
    leader.on_end = ended.append
    leader.stop("no memory")
    wait_for(lambda: said)
    assert said[0].startswith("error: process 0 (127.0.0.1:") and "ends: no memory" in said[0]
    assert not ended and follower.leader in said[0]


@pytest.mark.parametrize(
    ("mode", "text", "reason"),
    [
        (0o644, "00" * 32, "others can read"),
        (0o600, "00" * 31, "must hold 32 bytes"),
        (0o600, "no key", "must hold 32 bytes"),
    ],
)
def test_a_key_that_others_can_read_or_that_is_none_is_refused(
    tmp_path: Path, mode: int, text: str, reason: str
) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    os.chmod(path, mode)
    with pytest.raises(ValueError, match=reason):
        read_key(path)
