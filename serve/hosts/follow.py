"""Every process but the first: runs the programs that process 0 sends, until it stops."""

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

from eagle3_jax.engine import Engine
from serve.hosts.link import Kind, Link, PeerLost
from serve.hosts.meet import Facts, join
from serve.hosts.runtime import check_devices, leave, start_jax
from serve.options.hosts import HostOptions
from serve.pair.notices import Say

STOP_S = 10.0
"""For a stop that finds this process in the midst of something."""
VERDICT_S = 5.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def follow(
    hosts: HostOptions,
    facts: Facts,
    tensor_parallel_size: int,
    build: Callable[[], Engine],
    say: Say,
) -> int:
    """Builds the engine that process 0 builds and runs its calls of programs.

    Returns the exit status, 2 for what process 0 refuses; otherwise ends the process: with 0 when
    process 0 stops, 1 when it is lost or either of them fails.
    """
    try:
        follower = _Follower(join(hosts, facts), say)
    except (PeerLost, ValueError) as error:
        say(f"error: {error}")
        return 2
    try:
        start_jax(hosts)
        check_devices(hosts, tensor_parallel_size)
        engine = build()
        say(
            f"process {hosts.process_id} of {hosts.num_processes}, {jax.local_device_count()} "
            f"devices: runs what {follower.link.name} sends; HTTP is there"
        )
        engine.warmup()
        follower.link.send(Kind.COMPILED)
        with follower.passing_on_signals():
            engine.follow(follower.calls())
    except Exception as error:
        follower.fail(error)
    leave(0)


class _Follower:
    """What process 0 says, as it comes in."""

    def __init__(self, link: Link, say: Say):
        self.link = link
        self._say = say
        self._calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lost = threading.Event()
        link.start(self._receive, self._on_lost)

    def calls(self) -> Iterator[bytes]:
        """Calls in their order until process 0 stops."""
        while (call := self._calls.get()) is not None:
            yield call

    @contextmanager
    def passing_on_signals(self) -> Iterator[None]:
        """For a block: the first signal asks process 0 to drain, which ends this process, too."""
        asked = False

        def on_signal(number: int, _: object) -> None:
            nonlocal asked
            if asked:
                leave(128 + number)
            asked = True
            self._say(f"asked to stop: {self.link.name} finishes what is under way")
            self.link.send(Kind.DRAIN)

        before = {number: signal.signal(number, on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def fail(self, error: Exception) -> None:
        """Ends because of an error of this process, if it is not that process 0 is gone."""
        if self._lost.wait(VERDICT_S):
            leave(1)
        reason = f"{type(error).__name__}: {error}"
        self._say(f"error: {reason}")
        self.link.let_go()
        try:
            self.link.send(Kind.FAILED, reason.encode())
        finally:
            leave(1)

    def _receive(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.CALL:
            self._calls.put(payload)
        elif kind is Kind.STOP:
            self.link.let_go()
            self._calls.put(None)
            deadline = threading.Timer(STOP_S, leave, (0,))
            deadline.daemon = True
            deadline.start()
        elif kind is Kind.FAILED:
            self._on_lost(f"{self.link.name} ends: {payload.decode()}")

    def _on_lost(self, reason: str) -> None:
        self._lost.set()
        self._say(f"error: {reason}")
        leave(1)
