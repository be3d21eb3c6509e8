"""Manage an engine's processes for the server: meet them, watch them and stop them.

`RayGroup` in `ray_group.py` has the same methods.
"""

import asyncio
from collections.abc import Callable

import jax.profiler

from eagle3_jax.engine import Engine
from serve.asgi.graceful import GracefulServer
from serve.engine.messages import Profiler
from serve.engine.thread import EngineThread
from serve.hosts.facts import Facts
from serve.hosts.lead import Leader, lead
from serve.options.hosts import HostOptions
from serve.pair.notices import Notify

Rebuild = Callable[[Leader], Engine]
"""A function that builds another engine over processes that were restarted."""


class ManualGroup:
    """Processes that a user starts one by one, of which this is process 0."""

    profiler: Profiler = jax.profiler

    def __init__(self, hosts: HostOptions, facts: Facts, devices: int, notify: Notify):
        self._meet = lambda: lead(hosts, facts, devices, notify)
        self._leader: Leader | None = None

    def lead(self) -> Leader:
        """Meet the other processes and start JAX; ValueError or OSError if that fails."""
        self._leader = self._meet()
        return self._leader

    async def supervise(
        self, engine: EngineThread, server: GracefulServer, rebuild: Rebuild
    ) -> None:
        """Stop the server if a peer is lost or must stop, and the peers if the engine dies."""
        assert self._leader, "they have met"
        forward_events(self._leader, server.give_up, server)
        await engine.dead.wait()
        self._leader.stop("its engine failed")

    def stop(self, reason: str | None = None) -> None:
        """Stop the other processes, if they were met."""
        if self._leader:
            self._leader.stop(reason)


def forward_events(leader: Leader, on_end: Callable[[str], object], server: GracefulServer) -> None:
    """Forward the leader's events to the event loop from now on."""
    loop = asyncio.get_running_loop()
    leader.on_end = lambda reason: loop.call_soon_threadsafe(on_end, reason)
    leader.on_drain = lambda: loop.call_soon_threadsafe(server.drain)
