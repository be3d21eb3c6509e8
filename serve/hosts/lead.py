"""Lead as process 0: send program calls to the peers and detect lost peers."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import zmq

from serve.hosts.facts import Facts
from serve.hosts.messages import LINGER_MS, Kind, Listener, PeerLost, lost
from serve.hosts.rendezvous import Peer, gather
from serve.hosts.runtime import check_devices, exit_now, start_jax
from serve.options.hosts import HostOptions
from serve.pair.notices import Notify

LOOK_S = 0.05
"""Interval of checks for messages and lost peers. ZeroMQ closes a connection without heartbeats,
but its ROUTER reports that only to a send to this peer."""
VERDICT_S = 5.0
"""Time to wait for a lost connection, because a device's error about a killed peer may come
first."""


class Leader:
    """The peers of an engine (`eagle3_jax.engine.programs.messages.Peers`).

    `on_end` is called with the reason, once and from any thread, if the group cannot continue; by
    default it ends the process. `on_drain` is called when a peer is asked to stop.
    """

    def __init__(
        self,
        listener: Listener,
        peers: Mapping[int, Peer],
        notify: Notify,
        on_end: Callable[[str], object] = lambda _: exit_now(1),
    ):
        self.on_end = on_end
        self.on_drain: Callable[[], object] = self.stop_now
        self._listener = listener
        self._using = threading.Lock()  # Only one thread at a time may use a socket.
        self._peers = peers
        self._processes = {route: process for process, (route, _) in peers.items()}
        self._notify = notify
        self._compiled = {process: threading.Event() for process in peers}
        self._ending = threading.Lock()
        self._reason: str | None = None
        self._ended = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="watches peers", daemon=True).start()

    def await_compiled(self) -> None:
        """Wait until all peers have compiled; PeerLost if one cannot continue."""
        for compiled in self._compiled.values():
            compiled.wait()
        self._check()

    def send(self, message: bytes) -> None:
        """Send a call to all peers; PeerLost if one cannot receive it."""
        self._check()
        self._send(Kind.CALL, message)

    def explain(self, error: Exception) -> Exception:
        """Return the cause of an engine's error, a lost peer if there is one; may take seconds."""
        return PeerLost(self._reason) if self._ended.wait(VERDICT_S) else error

    def stop(self, reason: str | None = None) -> None:
        """Tell the peers that this process ends, with the reason of an irregular end.

        Waits 2 x LINGER_MS at most, because a peer may no longer read.
        """
        if self._stopped.is_set():
            return
        self._stopped.set()
        telling = threading.Thread(target=self._send_end, args=(reason,), daemon=True)
        telling.start()
        telling.join(2 * LINGER_MS / 1000)

    def stop_now(self) -> None:
        """End this process and its peers before anything is served."""
        self.stop()
        exit_now(0)

    def _send_end(self, reason: str | None) -> None:
        kind = Kind.FAILED if reason else Kind.STOP
        for process in self._peers:
            with suppress(PeerLost):
                self._send(kind, (reason or "").encode(), (process,))
        with self._using:
            self._listener.close()

    def _send(self, kind: Kind, payload: bytes = b"", to: tuple[int, ...] | None = None) -> None:
        for process in to or self._peers:
            route, name = self._peers[process]
            try:
                with self._using:
                    self._listener.socket.send_multipart([route, bytes([kind]), payload])
            except zmq.ZMQError as error:
                raise PeerLost(lost(name)) from error

    def _check(self) -> None:
        if self._ended.is_set():
            raise PeerLost(self._reason)

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_S):
            try:
                self._poll()
                self._send(Kind.BEAT)
            except PeerLost as error:
                if not self._stopped.is_set():
                    self._end(str(error))

    def _poll(self, wait_ms: int = 0) -> None:
        """Process messages that have arrived, or arrive within `wait_ms`."""
        for route, kind, payload in self._waiting(wait_ms):
            self._handle(route, kind, payload)

    def _waiting(self, wait_ms: int) -> list[tuple[bytes, int, bytes]]:
        """Return the peers' messages that have arrived; other messages are dropped."""
        found: list[list[bytes]] = []
        with self._using, suppress(zmq.ZMQError):
            if wait_ms and not self._listener.socket.closed:
                self._listener.socket.poll(wait_ms)
            while not self._listener.socket.closed:
                found.append(self._listener.socket.recv_multipart(zmq.NOBLOCK))
        return [
            (route, kind[0], payload)
            for route, kind, payload in (frames for frames in found if len(frames) == 3)
            if route in self._processes and len(kind) == 1
        ]

    def _handle(self, route: bytes, kind: int, payload: bytes) -> None:
        process = self._processes[route]
        name = self._peers[process][1]
        if kind == Kind.COMPILED:
            self._compiled[process].set()
        elif kind == Kind.DRAIN:
            self._notify(f"{name} was asked to stop; so do we")
            self.on_drain()
        elif kind == Kind.FAILED:
            self._end(f"{name} failed: {payload.decode(errors='replace')}")

    def _end(self, reason: str) -> None:
        with self._ending:
            if self._ended.is_set():
                return
            self._reason = reason
            self._ended.set()
        self._notify(f"error: {reason}")
        self.stop(reason)
        for compiled in self._compiled.values():
            compiled.set()
        self.on_end(reason)


def lead(hosts: HostOptions, facts: Facts, devices: int, notify: Notify) -> Leader:
    """Meet the peers and start JAX; a ValueError or OSError is sent to them before it is raised."""
    listener = Listener(hosts)
    try:
        leader = Leader(listener, gather(listener.socket, hosts, facts, notify), notify)
    except ValueError:
        listener.close()
        raise
    try:
        start_jax(hosts)
        check_devices(hosts, devices)
    except (OSError, ValueError) as error:
        leader.stop(str(error))
        raise
    return leader
