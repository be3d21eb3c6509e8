"""Counts requests from the arrival of their head to the last byte of their answer.

So a server that drains also waits for those the engine has not seen yet: whose body is on its way,
whose prompt is being tokenised, whose grammar is being compiled.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.asgi.auth import is_open
from serve.asgi.body_limit import answer_early
from serve.asgi.errors import as_api_error, as_response
from serve.asgi.root_path import below_root
from serve.engine.errors import ShuttingDown


class Arrivals:
    """The requests under way. Lives on the event loop."""

    def __init__(self) -> None:
        self.closed = False
        """Whether requests are late from now on: refused, but for probes and the like."""
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def none_left(self) -> None:
        """Returns when no request is under way."""
        await self._none_left.wait()

    async def end_all(self, grace_s: float) -> None:
        """Ends the requests under way, whatever they wait for, unless they do so by themselves
        within `grace_s`."""
        try:
            await asyncio.wait_for(self.none_left(), grace_s)
        except TimeoutError:
            for task in filter(None, self._tasks):
                task.cancel()

    @contextmanager
    def one(self) -> Iterator[None]:
        """The current task's request is under way for the time of the block."""
        task = asyncio.current_task()
        self._tasks.add(task)
        self._none_left.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._none_left.set()


class Arriving:
    """Counts every request; answers 503 to late ones, and to those that are ended before their
    answer has begun."""

    def __init__(self, app: ASGIApp, arrivals: Arrivals) -> None:
        self._app = app
        self._arrivals = arrivals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
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
            # Only a server that ends cancels a request; an answer that has begun is cut off.
            if not begun:
                late = as_response(as_api_error(ShuttingDown()), scope)
                await late(scope, receive, send)
