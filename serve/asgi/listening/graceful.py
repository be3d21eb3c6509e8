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

from serve.asgi.arrivals import Arrivals
from serve.asgi.listening.accepting import accept
from serve.asgi.listening.connection import Waiting, timed_connection
from serve.engine.thread import EngineThread

logger = logging.getLogger(__name__)
T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONNECTION_TIMEOUT_S = 5
LINGER_S = 1.0
"""After the engine's death, for probes and clients to see it before the process ends."""
GIVE_UP_S = 8.0
ABORT_S = 1.0
"""For answers that were aborted to reach their clients."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that doesn't listen yet, so that a taken port is known before weights load.

    Raises OSError when the address can't be had.
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
    """What to say of a bound address that others reach without a key, if it is one."""
    host = address.getsockname()[0]
    if api_keys or ipaddress.ip_address(host).is_loopback:
        return None
    return f"anybody who reaches {host} may ask: there is no --api-key"


class GracefulServer(uvicorn.Server):
    """On the first signal refuses new requests and drains; at the deadline aborts what is left.

    A second signal ends the process at once. uvicorn alone would stop listening first and then
    die of the signal; here clients are asked to come back, and the exit status is 0.
    """

    def __init__(
        self,
        app: FastAPI,
        engine: EngineThread,
        arrivals: Arrivals,
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
        self._engine, self._arrivals = engine, arrivals
        self._drain_timeout_s = drain_timeout_s
        self._max_connections, self._tls = max_connections, tls
        self._accepting: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[None] | None = None
        self._never_ready = 0

    @property
    def exit_status(self) -> int:
        """What the process should end with: 1 when the engine is dead, so that it is restarted;
        128 + n when signal n came before it was ready."""
        return 1 if self._engine.state == "dead" else self._never_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the application, and accepts connections in a way of its own."""
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
        """Accepts no more, lets connections end and stops the application."""
        for task in self._accepting:
            task.cancel()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replaces uvicorn's handlers for the time it serves; the engine's death ends that too."""
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
        """Starts the drain, or ends the process when it is already under way."""
        if self._draining is not None:
            os._exit(128 + number)
        if self._engine.state == "starting":
            self._never_ready, name = 128 + number, signal.Signals(number).name
            logger.warning("stopped by %s while compiling", name)
        self.drain()

    def drain(self) -> None:
        """Starts the drain if it is not under way."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    def give_up(self, reason: str) -> None:
        """Declares the engine dead, and ends with status 1 within GIVE_UP_S, whatever hangs."""
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
    """Runs the event loop until `work` is done.

    Unlike asyncio.run it then leaves threads alone: one may tokenise for minutes for a client that
    nobody answers any more. Whoever calls ends the process with `leave`, which waits for none.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop.run_until_complete(work)


def do_within(seconds: float, work: Callable[[], object]) -> None:
    """Does the work, or leaves it to a thread that nobody waits for when it takes longer."""
    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(seconds)
