"""The HTTP server: runs the application until a signal, then drains."""

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI

from serve.asgi.accepting import accept
from serve.asgi.connection import Waiting, timed_connection
from serve.asgi.in_flight import InFlightRequests
from serve.engine.thread import EngineThread

logger = logging.getLogger(__name__)
T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONNECTION_TIMEOUT_S = 5
LINGER_S = 1.0
"""Time after the engine's death for probes and clients to see it before the process ends."""
GIVE_UP_S = 8.0
ABORT_S = 1.0
"""Time for aborted answers to reach their clients."""


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet: a taken port shows before weights load.

    Raises OSError if the address is not available.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(f"can't listen on {host}:{port}: {error.strerror}") from error
    return bound


def exposure(address: socket.socket, api_keys: Collection[str]) -> str | None:
    """Return a warning if other machines reach the bound address without a key, else None."""
    host = address.getsockname()[0]
    if api_keys or ipaddress.ip_address(host).is_loopback:
        return None
    return f"every client that reaches {host} can send requests: no --api-key is set"


class GracefulServer(uvicorn.Server):
    """uvicorn server that drains on the first signal and aborts what is left at the deadline.

    A second signal ends the process at once. uvicorn alone would stop listening first and then die
    of the signal. Here new requests get 503 with Retry-After, and the exit status is 0.
    """

    def __init__(
        self,
        app: FastAPI,
        engine: EngineThread,
        in_flight: InFlightRequests,
        *,
        drain_timeout_s: float,
        client_timeout_s: float = 60.0,
        max_connections: int = 1000,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._waiting: Waiting = {}
        config = uvicorn.Config(
            app,
            http=timed_connection(client_timeout_s, self._waiting),
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=CONNECTION_TIMEOUT_S,
        )
        super().__init__(config)
        self._engine, self._arrivals = engine, in_flight
        self._drain_timeout_s = drain_timeout_s
        self._max_connections, self._tls = max_connections, tls
        self._accepting: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[None] | None = None
        self._never_ready = 0

    @property
    def exit_status(self) -> int:
        """Exit status: 1 if the engine died, so that it is restarted; 128 + n for early signals."""
        return 1 if self._engine.state == "dead" else self._never_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and accept connections with `accept` in place of uvicorn."""
        await super().startup(sockets=[])

        def make_protocol() -> asyncio.Protocol:
            connection = self.config.http_protocol_class
            state = self.lifespan.state
            return connection(config=self.config, server_state=self.server_state, app_state=state)  # type: ignore[call-arg, return-value]

        opened, limit = self.server_state.connections, self._max_connections
        for listener in sockets or ():
            accepting = accept(listener, limit, opened, self._waiting, make_protocol, self._tls)
            self._accepting.append(asyncio.create_task(accepting))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let connections end and stop the application."""
        for task in self._accepting:
            task.cancel()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replace uvicorn's signal handlers while it serves, and stop when the engine dies."""
        loop = asyncio.get_running_loop()
        # nohup ignores SIGHUP so that the process outlives its terminal.
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
        handled = [number for number in SIGNALS if number not in ignored]
        for number in handled:
            loop.add_signal_handler(number, self.on_signal, number)
        leaving = loop.create_task(self._leave_with_engine())
        try:
            yield
        finally:
            leaving.cancel()
            for number in handled:
                loop.remove_signal_handler(number)

    def on_signal(self, number: int) -> None:
        """Start the drain, or end the process if it has started already."""
        if self._draining is not None:
            os._exit(128 + number)
        if self._engine.state == "starting":
            self._never_ready, name = 128 + number, signal.Signals(number).name
            logger.warning("stopped by %s while compiling", name)
        self.drain()

    def drain(self) -> None:
        """Start the drain unless it has started already."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    def give_up(self, reason: str) -> None:
        """Declare the engine dead and exit with status 1 within GIVE_UP_S, whatever hangs."""
        self._engine.fail(reason)
        deadline = threading.Timer(GIVE_UP_S, os._exit, (1,))
        deadline.daemon = True
        deadline.start()

    async def _drain(self) -> None:
        self._engine.stop_admitting()
        self._arrivals.closed = True
        try:
            await asyncio.wait_for(self._arrivals.none_left(), self._drain_timeout_s)
        except TimeoutError:
            self._engine.abort_all()
            await self._arrivals.end_all(ABORT_S)
        finally:
            self.should_exit = True

    async def _leave_with_engine(self) -> None:
        await self._engine.dead.wait()
        await asyncio.sleep(LINGER_S)
        await self._arrivals.end_all(0)
        self.should_exit = True


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the event loop until `work` is done.

    Unlike asyncio.run it does not join threads: one may tokenise for minutes for a disconnected
    client. The caller ends the process with `leave`, which does not join threads either.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop.run_until_complete(work)


def do_within(seconds: float, work: Callable[[], object]) -> None:
    """Run the work in a daemon thread and wait for it at most `seconds`."""
    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(seconds)
