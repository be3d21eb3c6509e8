"""Run the programs that the leader sends, in every process that does not lead, until it stops."""

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from socket import socketpair
from typing import NoReturn

import jax
import zmq

from eagle3_jax.engine import Engine
from eagle3_jax.engine.programs.messages import PendingQuery
from serve.hosts.facts import Facts
from serve.hosts.messages import (
    LINGER_MS,
    NUMBER,
    Kind,
    PeerLost,
    connect,
    info_to_json,
    lost,
)
from serve.hosts.rendezvous import join
from serve.hosts.runtime import check_devices, exit_now, start_jax
from serve.options.hosts import HostOptions
from serve.pair.notices import Notify

STOP_S = 10.0
"""Time until this process ends after a stop, even if it is busy."""
VERDICT_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def follow(
    hosts: HostOptions,
    facts: Facts,
    devices: int,
    build: Callable[[Notify], Engine],
    notify: Notify,
) -> int:
    """Build the same engine as the leader, or for it, and run its program calls.

    Returns status 2 if the leader refuses this process. Otherwise ends the process: with 0 if the
    leader stops, with 1 if it is lost or either process fails.
    """
    try:
        dealer = connect(hosts)
        follower = Follower(dealer, join(dealer, hosts, facts), notify)
    except (PeerLost, ValueError, OSError) as error:
        notify(f"error: {error}")
        return 2
    is_asked = hosts.driven and hosts.process_id == 0
    try:
        start_jax(hosts)
        check_devices(hosts, devices)
        engine = build(follower.notify_leader if is_asked else lambda _: None)
        if is_asked:
            follower.send(Kind.ENGINE_INFO, info_to_json(engine.info))
        notify(
            f"process {hosts.process_id} of {hosts.num_processes}, {jax.local_device_count()} "
            f"devices: runs what {follower.leader} sends; HTTP is there"
        )
        engine.warmup(follower.on_compiled if is_asked else None)
        follower.send(Kind.COMPILED)
        with follower.forwarding_signals():
            engine.follow(follower.calls())
    except Exception as error:
        follower.fail(error)
    exit_now(0)


class Follower:
    """The connection to the leader, whose name is `leader`.

    One thread owns the socket. Other threads queue messages for it and wake it.
    """

    def __init__(self, dealer: zmq.Socket[bytes], leader: str, notify: Notify):
        self.leader = leader
        self._dealer = dealer
        self._notify = notify
        self._calls: queue.SimpleQueue[bytes | PendingQuery | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._woken, self._wake = socketpair()
        self._lost = threading.Event()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reads the leader", daemon=True)
        self._thread.start()

    def calls(self) -> Iterator[bytes | PendingQuery]:
        """Yield calls and questions in order until the leader stops."""
        while (call := self._calls.get()) is not None:
            yield call

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Send a message; callable from any thread."""
        self._enqueue([bytes([kind]), payload])

    def notify_leader(self, text: str) -> None:
        """Print a line in the leader's process."""
        self.send(Kind.NOTICE, text.encode())

    def on_compiled(self, _: str, done: int, total: int) -> None:
        """Print this process's progress in the leader's process."""
        self.notify_leader(f"compiled {done}/{total} programs")

    def _enqueue(self, word: list[bytes] | None) -> None:
        self._outbox.put(word)
        with suppress(OSError):  # The socket's thread has ended.
            self._wake.send(b"\0")

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Let the first signal ask the leader to drain, which also ends this process."""
        asked = False

        def on_signal(number: int, _: object) -> None:
            nonlocal asked
            if asked:
                exit_now(128 + number)
            asked = True
            self._notify(f"asked to stop: {self.leader} finishes what is under way")
            self.send(Kind.DRAIN)

        before = {number: signal.signal(number, on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def fail(self, error: Exception) -> NoReturn:
        """End this process because of its own error, unless the leader is lost."""
        if self._lost.wait(VERDICT_S):
            exit_now(1)
        reason = f"{type(error).__name__}: {error}"
        self._notify(f"error: {reason}")
        self._released.set()
        self.send(Kind.FAILED, reason.encode())
        self._enqueue(None)
        self._thread.join(2 * LINGER_MS / 1000)
        exit_now(1)

    def _run(self) -> None:
        with closing(self._woken), closing(self._wake):
            self._speak_and_listen()

    def _speak_and_listen(self) -> None:
        """Run until the last message is sent or the leader is lost."""
        poller = zmq.Poller()
        monitor = self._dealer.get_monitor_socket()  # Made by `join`.
        for socket in (self._dealer, monitor, self._woken):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            if self._dealer in ready:
                self._receive(self._dealer.recv_multipart())
            elif monitor in ready:  # After all received messages.
                if not self._released.is_set():
                    self._on_lost(lost(self.leader))
                return
            while not self._outbox.empty():
                if (word := self._outbox.get()) is None:
                    return self._dealer.context.destroy(linger=LINGER_MS)
                self._dealer.send_multipart(word)

    def _receive(self, frames: list[bytes]) -> None:
        match frames:
            case [kind, call] if kind == bytes([Kind.CALL]):
                self._calls.put(call)
            case [kind, payload] if kind == bytes([Kind.QUERY]):
                number, question = payload[: NUMBER.size], payload[NUMBER.size :]
                self._calls.put(PendingQuery(question, partial(self._answer, number)))
            case [kind, _] if kind == bytes([Kind.STOP]):
                self._released.set()
                self._calls.put(None)
                deadline = threading.Timer(STOP_S, exit_now, (0,))
                deadline.daemon = True
                deadline.start()
            case [kind, reason] if kind == bytes([Kind.FAILED]):
                self._on_lost(f"{self.leader} ends: {reason.decode(errors='replace')}")

    def _answer(self, number: bytes, answer: bytes | Exception) -> None:
        if isinstance(answer, Exception):
            self.fail(answer)
        self.send(Kind.ANSWER, number + answer)

    def _on_lost(self, reason: str) -> None:
        self._lost.set()
        self._notify(f"error: {reason}")
        exit_now(1)
