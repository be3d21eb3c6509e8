"""Every process but the first: runs the programs that process 0 sends, until it stops."""

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

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
    """Builds the engine that process 0 builds and runs its plans.

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
            engine.follow(follower.plans())
    except Exception as error:
        follower.fail(error)
    leave(0)


class _Follower:
    """What process 0 says, as it comes in."""

    def __init__(self, link: Link, say: Say):
        self.link = link
        self._say = say
        self._plans: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lost = threading.Event()
        link.start(self._receive, self._on_lost)

    def plans(self) -> Iterator[bytes]:
        """Plans in their order until process 0 stops."""
        while (plan := self._plans.get()) is not None:
            yield plan

    def passing_on_signals(self) -> Any:
        """For a block: the first signal asks process 0 to drain, which ends this process, too."""
        return _Signals(self.link, self._say)

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
        if kind is Kind.PLAN:
            self._plans.put(payload)
        elif kind is Kind.STOP:
            self.link.let_go()
            self._plans.put(None)
            self._within(STOP_S, 0)
        elif kind is Kind.FAILED:
            self._on_lost(f"{self.link.name} ends: {payload.decode()}")

    def _on_lost(self, reason: str) -> None:
        self._lost.set()
        self._say(f"error: {reason}")
        leave(1)

    @staticmethod
    def _within(seconds: float, status: int) -> None:
        timer = threading.Timer(seconds, leave, (status,))
        timer.daemon = True
        timer.start()


class _Signals:
    """SIGINT and SIGTERM of a process that does not decide when to stop."""

    def __init__(self, link: Link, say: Say):
        self._link, self._say, self._asked = link, say, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        if self._asked:
            leave(128 + number)
        self._asked = True
        self._say(f"asked to stop: {self._link.name} finishes what is under way")
        self._link.send(Kind.DRAIN)
