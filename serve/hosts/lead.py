"""Process 0 of several: sends calls of programs to the others, and notices when one is gone."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from serve.hosts.link import Kind, Link, PeerLost
from serve.hosts.meet import Facts, gather
from serve.hosts.runtime import check_devices, leave, start_jax
from serve.options.hosts import HostOptions
from serve.pair.notices import Say

TELL_S = 1.0
VERDICT_S = 5.0
"""A device's error about a peer that was killed may come before the connection's."""


class Leader:
    """The peers of an engine (`eagle3_jax.engine.programs.call.Peers`), as process 0 has them.

    on_end: called with the reason, once and from any thread, when the group can't go on; until
    somebody else takes it, it says so and ends the process. on_drain: when a peer is to stop.
    """

    def __init__(self, links: Mapping[int, Link], say: Say):
        self.on_end: Callable[[str], None] = lambda _: leave(1)
        self.on_drain: Callable[[], None] = self.stop_now
        self._links = links
        self._say = say
        self._compiled = {process: threading.Event() for process in links}
        self._ending = threading.Lock()
        self._reason: str | None = None
        self._ended = threading.Event()
        for process, link in links.items():
            link.start(self._receiver(process), self._end)

    def await_compiled(self) -> None:
        """Waits for every peer; PeerLost when one can't go on."""
        for compiled in self._compiled.values():
            compiled.wait()
        self._check()

    def send(self, message: bytes) -> None:
        """Sends a call to all peers; PeerLost when one can't take it."""
        self._check()
        for link in self._links.values():
            link.send(Kind.CALL, message)

    def explain(self, error: Exception) -> Exception:
        """What is behind an engine's error: a peer that is gone, if one is; may take seconds."""
        return PeerLost(self._reason) if self._ended.wait(VERDICT_S) else error

    def stop(self, reason: str | None = None) -> None:
        """Tells the peers that this process ends, and why if it is no regular end; not for long,
        because one of them may take nothing any more."""
        for link in self._links.values():
            link.let_go()
        telling = threading.Thread(target=self._tell, args=(reason,), daemon=True)
        telling.start()
        telling.join(TELL_S)

    def stop_now(self) -> None:
        """Ends this process and its peers where nothing is served yet."""
        self.stop()
        leave(0)

    def _tell(self, reason: str | None) -> None:
        kind = Kind.FAILED if reason else Kind.STOP
        for link in self._links.values():
            with suppress(PeerLost):
                link.send(kind, (reason or "").encode())

    def _check(self) -> None:
        if self._ended.is_set():
            raise PeerLost(self._reason)

    def _receiver(self, process: int) -> Callable[[Kind, bytes], None]:
        def receive(kind: Kind, payload: bytes) -> None:
            if kind is Kind.COMPILED:
                self._compiled[process].set()
            elif kind is Kind.DRAIN:
                self._say(f"{self._links[process].name} was asked to stop; so do we")
                self.on_drain()
            elif kind is Kind.FAILED:
                self._end(f"{self._links[process].name} failed: {payload.decode()}")

        return receive

    def _end(self, reason: str) -> None:
        with self._ending:
            if self._ended.is_set():
                return
            self._reason = reason
            self._ended.set()
        self._say(f"error: {reason}")
        self.stop(reason)
        for compiled in self._compiled.values():
            compiled.set()
        self.on_end(reason)


def lead(hosts: HostOptions, facts: Facts, tensor_parallel_size: int, say: Say) -> Leader:
    """Meets the others and starts JAX; ValueError or OSError, which is sent to them, where that
    can't be."""
    leader = Leader(gather(hosts, facts, say), say)
    try:
        start_jax(hosts)
        check_devices(hosts, tensor_parallel_size)
    except (OSError, ValueError) as error:
        leader.stop(str(error))
        raise
    return leader
