"""Lead processes that hold all devices from a process without devices, Ray's driver."""

import threading
import time
from collections.abc import Callable, Mapping
from itertools import count

from eagle3_jax.engine.programs.remote import EngineInfo
from serve.hosts.facts import Facts
from serve.hosts.lead import Leader
from serve.hosts.messages import NUMBER, Kind, Listener, PeerLost, info_from_json
from serve.hosts.rendezvous import Peer, gather
from serve.options.hosts import HostOptions
from serve.pair.notices import Notify

POLL_MS = 2
"""Poll interval while waiting for a reply, so that other threads can use the socket."""
YIELD_S = 0.0001
NUMBERS = 2**32
"""Range of question numbers, which then start again."""


class Reply:
    """A pending answer; calling it waits for the answer."""

    def __init__(self, wait: Callable[["Reply"], bytes]):
        self.answer: bytes | None = None
        self._wait = wait

    def __call__(self) -> bytes:
        return self._wait(self)


class DeviceLeader(Leader):
    """The devices of an engine (`eagle3_jax.engine.programs.remote.Devices`).

    `info` describes process 0's engine, once it exists.
    """

    def __init__(self, listener: Listener, peers: Mapping[int, Peer], notify: Notify):
        self._numbers = count()
        self._replies: dict[int, Reply] = {}
        """Questions without an answer yet; some answers are never read."""
        self._is_built = threading.Event()
        self.info: EngineInfo
        super().__init__(listener, peers, notify, on_end=lambda _: None)

    def await_engine(self) -> None:
        """Wait for process 0's engine; PeerLost if it cannot be built."""
        while not self._is_built.wait(POLL_MS / 1000):
            self._check()

    def ask(self, question: bytes) -> Reply:
        """Ask process 0 in order with the calls; the reply waits, or raises PeerLost."""
        number = next(self._numbers) % NUMBERS
        self._replies[number] = reply = Reply(self._await)
        self._send(Kind.QUERY, NUMBER.pack(number) + question, (0,))
        return reply

    def _await(self, reply: Reply) -> bytes:
        while reply.answer is None:
            self._check()
            self._poll(POLL_MS)
            time.sleep(YIELD_S)
        return reply.answer

    def _handle(self, route: bytes, kind: int, payload: bytes) -> None:
        if kind == Kind.ANSWER:
            reply = self._replies.pop(*NUMBER.unpack_from(payload))
            reply.answer = payload[NUMBER.size :]
        elif kind == Kind.ENGINE_INFO and self._processes[route] == 0:
            self.info = info_from_json(payload)
            self._is_built.set()
        elif kind == Kind.NOTICE:
            self._notify(payload.decode(errors="replace"))
        else:
            super()._handle(route, kind, payload)


def drive(
    hosts: HostOptions, facts: Facts, notify: Notify, abort_reason: Callable[[], str | None]
) -> DeviceLeader:
    """Meet the processes and wait for process 0's engine; OSError, or ValueError with a reason."""
    listener = Listener(hosts)
    try:
        peers = gather(listener.socket, hosts, facts, notify, abort_reason)
    except ValueError:
        listener.close()
        raise
    leader = DeviceLeader(listener, peers, notify)
    try:
        leader.await_engine()
    except PeerLost as error:
        raise ValueError(f"no engine was built: {error}") from error
    return leader
