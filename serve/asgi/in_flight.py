"""Counts requests from the arrival of their head to the last byte of their answer.

A draining server therefore also waits for requests that the engine has not seen yet: those whose
body is arriving, whose prompt is being tokenised, or whose grammar is being compiled.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.asgi.auth import is_open
from serve.asgi.body_limit import answer_early
from serve.asgi.errors import as_api_error, as_response, below_root
from serve.engine.errors import ShuttingDown


class InFlightRequests:
    """The requests in flight. Used on the event loop only."""

    def __init__(self) -> None:
        self.closed = False
        """If True, refuse new requests, except those for open paths (probes and the like)."""
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def none_left(self) -> None:
        await self._none_left.wait()

    async def end_all(self, grace_s: float) -> None:
        """Cancel all requests in flight that do not end by themselves within `grace_s`."""
        try:
            await asyncio.wait_for(self.none_left(), grace_s)
        except TimeoutError:
            for task in filter(None, self._tasks):
                task.cancel()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the current task's request as in flight for the duration of the block."""
        task = asyncio.current_task()
        self._tasks.add(task)
        self._none_left.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._none_left.set()


class InFlightMiddleware:
    """Middleware that counts requests. Late or cancelled ones get 503."""

    def __init__(self, app: ASGIApp, in_flight: InFlightRequests) -> None:
        self._app = app
        self._arrivals = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._arrivals.closed and not is_open(below_root(scope)):
            await answer_early(as_api_error(ShuttingDown()), scope, receive, send)
        else:
            with self._arrivals.one():
                await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except asyncio.CancelledError:
            # Only server shutdown cancels a request. An answer that has begun is cut off.
            if not begun:
                late = as_response(as_api_error(ShuttingDown()), scope)
                await late(scope, receive, send)
