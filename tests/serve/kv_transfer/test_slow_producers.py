"""Producers that are silent, drip or are gone: a pull ends at its deadline, the next ones do not
begin, and pulls from other producers are not held up."""

import socket
import threading
import time

import pytest
from page_ends import (
    KEYS,
    SIZE,
    SLOTS,
    Store,
    begun,
    ended,
    eventually,
    listening,
    producing,
    pulled,
)

from serve.kv_transfer import consumer, wire
from serve.kv_transfer.config import PULL_S
from serve.kv_transfer.consumer import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MOST_PULLS,
    CircuitBreaker,
    Puller,
    RemotePages,
)
from serve.kv_transfer.wire import HELLO_S, LENGTH_BYTES, Connection


class FakeClock:
    """Shows `now`, which goes on by `step` whenever somebody looks."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def came(source: RemotePages) -> bool:
    """Return whether all pages came; either all or none must."""
    (found,) = set(ended(source).values())
    return found


def fails_at_once(source: RemotePages) -> bool:
    return source.poll() == [(slot, False) for _, slot in SLOTS]


def drip(peer: socket.socket) -> None:
    """Sends the first page a byte at a time."""
    met = Connection(peer, "producer", b"", time.monotonic, time.monotonic() + 60)
    met.greet()
    met.receive_json()
    met.send_json({"page_bytes": SIZE})
    met.send_json({"key": KEYS[0].hex()})
    peer.sendall(SIZE.to_bytes(LENGTH_BYTES, "big"))
    drip_zeros(peer)


def drip_zeros(peer: socket.socket) -> None:
    while True:
        peer.sendall(b"\0")
        time.sleep(0.001)


def test_a_dripping_producer_is_given_up_at_the_deadline_of_the_pull() -> None:
    """A socket's own timeout would begin anew with each byte."""
    clock = FakeClock(step=0.05)
    with listening(drip) as port:
        assert not any(pulled(Store(), port, clock=clock).values())
    assert PULL_S < clock.now < PULL_S + 1


def test_a_dripping_hello_is_given_up_sooner_at_both_ends() -> None:
    clock = FakeClock(step=0.5)
    with listening(drip_zeros) as port:
        assert not any(pulled(Store(), port, clock=clock).values())
    assert HELLO_S < clock.now < PULL_S
    with producing(clock=FakeClock(step=0.5)) as server:
        with socket.create_connection(server.address) as peer, pytest.raises(OSError):
            drip_zeros(peer)


def test_a_silent_producer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulls beyond MOST_PULLS fail at once and none queues; other producers' pages come meanwhile;
    after the first failure none begins, and after the pause one tries."""
    monkeypatch.setattr(consumer, "HELLO_S", 1.0)
    connections: list[socket.socket] = []
    clock = FakeClock()
    puller = Puller(Store(), "f", clock=clock)

    def be_silent(peer: socket.socket) -> None:
        connections.append(peer.dup())

    with listening(be_silent) as port, producing() as server:
        stalled = [begun(puller, port) for _ in range(MOST_PULLS)]
        assert all(fails_at_once(begun(puller, port)) for _ in range(10))
        assert came(begun(puller, server.address[1]))
        assert not any(source.poll() for source in stalled), "they wait for the silent one"
        assert not any(map(came, stalled))
        eventually(lambda: puller._breakers["127.0.0.1", port]._active == 0)
        assert len(connections) == MOST_PULLS
        assert all(fails_at_once(begun(puller, port)) for _ in range(10))
        clock.now += FIRST_PAUSE_S
        probe = begun(puller, port)
        assert all(fails_at_once(begun(puller, port)) for _ in range(10))
        assert not came(probe)
        assert len(connections) == MOST_PULLS + 1
    for connection in connections:
        connection.close()


def test_pauses_double_and_end_with_a_pull_that_works() -> None:
    clock = FakeClock()
    breaker = CircuitBreaker(clock)
    for failures in range(12):
        assert breaker.acquire()
        assert failures == 0 or not breaker.acquire(), "one probe at a time"
        breaker.release(failed=True)
        pause = min(FIRST_PAUSE_S * 2**failures, LONGEST_PAUSE_S)
        clock.now += pause - 0.125
        assert not breaker.acquire()
        clock.now += 0.125
    assert breaker.acquire()
    breaker.release(failed=False)
    assert [breaker.acquire() for _ in range(MOST_PULLS + 1)] == [True] * MOST_PULLS + [False]


def test_pulls_that_fail_together_count_once() -> None:
    breaker = CircuitBreaker(clock := FakeClock())
    assert all(breaker.acquire() for _ in range(MOST_PULLS))
    for _ in range(MOST_PULLS):
        breaker.release(failed=True)
    clock.now += FIRST_PAUSE_S
    assert breaker.acquire()


def test_a_refusal_does_not_pause_a_producer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can cause as many as it likes: names that are not kept, and a port that is full."""
    monkeypatch.setattr(wire, "LOG_S", 0)
    puller = Puller(Store(), "f", clock=FakeClock())
    with producing() as server:
        for _ in range(5):
            assert not came(begun(puller, server.address[1], name="b"))
        assert came(begun(puller, server.address[1]))
    with producing() as server:
        server._connections = threading.BoundedSemaphore(1)
        with socket.create_connection(server.address) as silent:
            silent.recv(1)
            assert not came(begun(puller, server.address[1]))
            assert "serves as many connections as it can" in caplog.text
        eventually(lambda: came(begun(puller, server.address[1])))
