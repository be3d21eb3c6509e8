"""The processes of an engine as the one that serves sees them: met before there is an engine, heard
while it answers, let go behind it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import jax.profiler

from eagle3_jax.engine import Engine
from serve.asgi.listening.graceful import GracefulServer
from serve.engine.profiler import Profiler
from serve.engine.thread import EngineThread
from serve.hosts.facts import Facts
from serve.hosts.lead import Leader, lead
from serve.options.hosts import HostOptions
from serve.pair.notices import Say

Rebuild = Callable[[Leader], Engine]
"""Another engine over processes that have been started again."""


class Group(Protocol):
    """lead: meets them; ValueError or OSError where that can't be. accompany: beside the server,
    until it ends or has to. stop: ends them, too. profiler: of the first with devices."""

    @property
    def profiler(self) -> Profiler: ...
    def lead(self) -> Leader: ...
    async def accompany(
        self, engine: EngineThread, server: GracefulServer, rebuild: Rebuild
    ) -> None: ...
    def stop(self, reason: str | None = None) -> None: ...


class StartedByHand:
    """This process is process 0, and whoever started it starts the others."""

    profiler: Profiler = jax.profiler

    def __init__(self, hosts: HostOptions, facts: Facts, devices: int, say: Say):
        self._meet = lambda: lead(hosts, facts, devices, say)
        self._leader: Leader | None = None

    def lead(self) -> Leader:
        """Meets the others, and starts JAX."""
        self._leader = self._meet()
        return self._leader

    async def accompany(
        self, engine: EngineThread, server: GracefulServer, rebuild: Rebuild
    ) -> None:
        """Ends with a peer that is lost or has to stop, and the peers with an engine that has
        died."""
        assert self._leader, "they have met"
        hear(self._leader, server.give_up, server)
        await engine.dead.wait()
        self._leader.stop("its engine failed")

    def stop(self, reason: str | None = None) -> None:
        """Lets the others end, if they have come."""
        if self._leader:
            self._leader.stop(reason)


def hear(leader: Leader, on_end: Callable[[str], object], server: GracefulServer) -> None:
    """From now on what becomes of peers is told on the event loop."""
    loop = asyncio.get_running_loop()
    leader.on_end = lambda reason: loop.call_soon_threadsafe(on_end, reason)
    leader.on_drain = lambda: loop.call_soon_threadsafe(server.drain)
