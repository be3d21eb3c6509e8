"""Let Ray start and restart an engine's processes; this process, without devices, serves HTTP."""

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial

import jax

from eagle3_jax.engine.programs.remote import RemoteProfiler
from serve.asgi.graceful import GracefulServer
from serve.engine.thread import EngineThread
from serve.engine.threads import Threads
from serve.hosts.drive import DeviceLeader, drive
from serve.hosts.facts import Facts
from serve.hosts.group import Rebuild, forward_events
from serve.hosts.ray_actors import Actors, Run
from serve.options.serve_options import ServeOptions
from serve.pair.notices import Notify

STARTS = 3
"""Maximum number of consecutive failed restarts of an engine that was ready once."""


class RayGroup:
    """Processes that Ray starts, each with `run`; ValueError or ConnectionError if it cannot."""

    def __init__(
        self, run: Run, argv: Sequence[str], options: ServeOptions, facts: Facts, notify: Notify
    ):
        assert options.ray, "Ray is to start them"
        self._restarts, self._facts, self._notify = options.ray.restart, facts, notify
        self._actors = Actors(run, argv, options.ray, notify)
        self._starting = Threads("starts processes", 1)
        self._leader: DeviceLeader | None = None
        use_cpu_devices(options.parallel.devices)

    def lead(self) -> DeviceLeader:
        """Start all processes, and wait until they have an engine."""
        ours = self._actors.start()
        self._leader = drive(ours, self._facts, self._notify, self._actors.ended)
        return self._leader

    async def supervise(
        self, engine: EngineThread, server: GracefulServer, rebuild: Rebuild
    ) -> None:
        """Restart all processes if one is lost; stop the server if that is off or fails."""
        ended = self._forward_events(engine, server)
        while True:
            reason = await ended
            if not (self._restarts and engine.state == "ready"):
                return server.give_up(reason)
            engine.interrupt(reason)
            if (again := await self._start_again(engine, server, rebuild)) is None:
                return server.give_up(f"{STARTS} starts in a row failed")
            ended = again

    @property
    def profiler(self) -> RemoteProfiler:
        """Profiler of the current process 0."""
        return RemoteProfiler(self._ask)

    def _ask(self, question: bytes) -> Callable[[], bytes]:
        assert self._leader, "they have met"
        return self._leader.ask(question)

    def stop(self, reason: str | None = None) -> None:
        """Stop the processes, and kill those that do not end."""
        if self._leader:
            self._leader.stop(reason)
        self._actors.terminate_all()

    def _forward_events(self, engine: EngineThread, server: GracefulServer) -> asyncio.Future[str]:
        """Return a future with the reason why this start of the engine ends."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def end(reason: str) -> None:
            if not ended.done():
                ended.set_result(reason)

        assert self._leader, "they have met"
        forward_events(self._leader, end, server)
        engine.on_failure = end
        return ended

    async def _start_again(
        self, engine: EngineThread, server: GracefulServer, rebuild: Rebuild
    ) -> asyncio.Future[str] | None:
        """Restart and wait until the engine is ready; return the future of its end, or None."""
        for failed in range(STARTS):
            again = f", start {failed + 1} of at most {STARTS}" if failed else ""
            self._notify(f"starting all processes again{again}")
            try:
                await self._starting.run(partial(self.stop, "its engine failed"))
                leader = await self._starting.run(self.lead)
                built = await self._starting.run(partial(rebuild, leader))
            except (OSError, ValueError) as error:
                self._notify(f"error: {error}")
                continue
            ended = self._forward_events(engine, server)
            engine.resume(built, leader.explain)
            ready = asyncio.ensure_future(engine.ready.wait())
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if engine.state == "ready":
                self._notify("ready again")
                return ended
        return None


def use_cpu_devices(devices: int) -> None:
    """Give this process as many (empty) CPU devices as the engine has: models need its mesh."""
    count = "--xla_force_host_platform_device_count"
    flags = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join(flag for flag in flags if not flag.startswith(count))
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
