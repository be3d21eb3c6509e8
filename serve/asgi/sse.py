"""Bodies and server-sent events that are written in pieces until the client disconnects.

Long answers take turns: one of them at a time is being encoded, for TURN_S seconds, so that the
event loop serves other requests in between.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fastapi import Response
from starlette.types import Receive, Scope, Send

from convert.text.json_pieces import PIECE_CHARS, encoded, json_pieces
from eagle3_jax.engine import EngineStats
from serve.asgi.errors import as_api_error
from serve.engine.errors import EngineError

T = TypeVar("T")

DONE = ("data: [DONE]\n\n",)
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
SYNTHETIC_HEADER = "x-synthetic-acceptance-length"
TURN_S = 0.005
FREE_S = 0.001
"""Time for the start of every answer or event, which waits for no turn. It suffices for most."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def event(body: Any) -> Iterator[str]:
    """Yield the texts of one event: a data line alone, as some clients parse each line as JSON."""
    yield "data: "
    yield from json_pieces(body)
    yield "\n\n"


def named_event(body: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of one event with its `type` as name, for protocols whose clients use it."""
    yield f"event: {body['type']}\n"
    yield from event(body)


async def until_disconnect(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """Run `work` to its end, or cancel it and raise ClientGone when the client disconnects."""
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


class WholeBody(Response):
    """JSON body that is encoded while it is sent. A short one has a content-length header."""

    media_type = "application/json"

    def __init__(self, texts: Iterable[str]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._pieces = in_turns(texts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        piece = await anext(self._pieces)
        following = await anext(self._pieces, None)
        if following is None:
            self.headers["content-length"] = f"{len(piece)}"
            await self._send(send, piece, None)
            return
        with suppress(ClientGone, OSError):
            await until_disconnect(receive, self._send(send, piece, following))

    async def _send(self, send: Send, piece: bytes, following: bytes | None) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        while following is not None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            piece, following = following, await anext(self._pieces, None)
        await send({"type": "http.response.body", "body": piece, "more_body": False})


class EventStream(Response):
    """Stream of events. Calls `on_end` however it ends, also when the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[Iterable[str]], on_end: Callable[[], None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send(send))
        except (ClientGone, OSError):
            pass  # The client is gone.
        finally:
            self._on_end()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        async for texts in self._with_error():
            async for piece in in_turns(texts):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # An engine step may bring an event for each choice.
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _with_error(self) -> AsyncIterator[Iterable[str]]:
        """Yield the events, and an error as an event: after the first byte the status is fixed."""
        try:
            async for texts in self._events:
                yield texts
        except EngineError as error:
            yield event(as_api_error(error).body())
            yield DONE


async def in_turns(texts: Iterable[str]) -> AsyncIterator[bytes]:
    """Yield the joined texts in pieces of at least PIECE_CHARS characters; the last may be shorter.

    Texts are produced during the answer's turns, so that a piece may take several turns.
    """
    rest, taken = iter(texts), list[str]()
    more = _take(rest, taken, FREE_S)
    while more:
        if sum(map(len, taken)) >= PIECE_CHARS:
            yield encoded("".join(taken))
            taken.clear()
        await asyncio.sleep(0)
        async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            more = _take(rest, taken, TURN_S)
    yield encoded("".join(taken))


def _take(texts: Iterator[str], taken: list[str], seconds: float) -> bool:
    """Move the texts of one turn, at most a piece, to `taken`. Returns whether more may follow."""
    end, size = time.monotonic() + seconds, 0
    for text in texts:
        taken.append(text)
        size += len(text)
        if size >= PIECE_CHARS or time.monotonic() > end:
            return True
    return False


def synthetic_field(stats: EngineStats) -> dict[str, float]:
    """Return the field that marks a body made under synthetic acceptance, else {}."""
    length = stats.synthetic_acceptance_length
    return {} if length is None else {"synthetic_acceptance_length": length}


def synthetic_header(stats: EngineStats) -> dict[str, str]:
    """Return the header that marks every response under synthetic acceptance, else {}."""
    length = stats.synthetic_acceptance_length
    return {} if length is None else {SYNTHETIC_HEADER: f"{length:g}"}
