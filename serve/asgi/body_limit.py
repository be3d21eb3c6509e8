"""Limits the size and the arrival time of a request body before anything parses it."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.asgi.errors import ApiError, as_response

LINGER_S = 2.0
"""Time for which the rest of a refused body is read and discarded. A client that sends all of it
before it reads would otherwise find a reset connection and not its answer."""


class BodyLimit:
    """Middleware: 413 for bodies above `max_bytes`, 408 for those slower than `timeout_s`."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(Headers(scope=scope), receive)
        except TimeoutError:
            message = (
                f"the body did not arrive within {self._timeout_s:g} seconds (--client-timeout)"
            )
            error = _closing(408, message, "body_too_slow")
            await answer_early(error, scope, receive, send)
        except _TooLarge as found:
            message = f"the body is larger than {self._max_bytes} bytes (--max-body-size)"
            error = _closing(413, message, "body_too_large")
            await answer_early(error, scope, receive, send, ended=found.ended)
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """Return the body, or None if the client disconnected before its end."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise _TooLarge(ended=False)
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self._max_bytes:
                raise _TooLarge(ended=not message.get("more_body", False))
            if not message.get("more_body", False):
                return b"".join(pieces)


class _TooLarge(Exception):
    """The body exceeds the limit. `ended` says whether the client has sent all of it."""

    def __init__(self, *, ended: bool) -> None:
        super().__init__()
        self.ended = ended


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive channel that yields the body once, then the connection's own messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def answer_early(
    error: ApiError, scope: Scope, receive: Receive, send: Send, *, ended: bool = False
) -> None:
    """Answer before the body has arrived, and end the answer after the body or LINGER_S.

    The server closes the connection when an answer ends.
    """

    async def send_unended(message: Message) -> None:
        unended = {"more_body": True} if message["type"] == "http.response.body" else {}
        await send({**message, **unended})

    await as_response(error, scope)(scope, receive, send_unended)
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while not ended:
                ended = not (await receive()).get("more_body", False)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _closing(status: int, message: str, code: str) -> ApiError:
    """Return an error that closes the connection: the rest of the body is not awaited."""
    return ApiError(status, message, code=code, headers={"Connection": "close"})
