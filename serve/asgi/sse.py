"""Server-sent events, and giving up when the client hangs up."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar

from fastapi import Response
from starlette.types import Receive, Scope, Send

from serve.asgi.errors import as_api_error
from serve.engine.errors import EngineError

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def event(json_text: str) -> bytes:
    """One event. Nothing else may be on the wire: some clients parse every line as JSON."""
    return f"data: {json_text}\n\n".encode()


def named_event(name: str, json_text: str) -> bytes:
    """One event with its name, for protocols whose clients go by that."""
    return f"event: {name}\n".encode() + event(json_text)


async def until_disconnect(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """Runs `work` to its end, or cancels it and raises ClientGone when the client hangs up."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Streams events; calls `on_end` however it ends, a client that hangs up included."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response (ASGI)."""
        try:
            await until_disconnect(receive, self._send(send))
        except (ClientGone, OSError):
            pass  # Nobody is left to answer.
        finally:
            self._on_end()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        async for data in self._with_error():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _with_error(self) -> AsyncIterator[bytes]:
        """An error after the first byte can't change the status any more: it becomes an event."""
        try:
            async for data in self._events:
                yield data
        except EngineError as error:
            yield event(json.dumps(as_api_error(error).body()))
            yield DONE
