"""HTTP connections with timeouts for slow clients, and complete answers to half-closed ones."""

import asyncio
import json
import sys
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from serve.asgi.errors import ApiError

LINGER_S = 2.0
"""Time for which input after a malformed request is discarded. If the connection closed at once,
the client would find it reset and not its answer."""
PROBE_S = 0.5
INTERIM = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")

Waiting = dict[H11Protocol, float]
"""Connections without a request, and the loop time since then. The longest wait comes first."""


LENGTHS = {b"content-length", b"transfer-encoding"}


class OneLength(h11.Connection):
    """HTTP/1.1 parser that rejects requests with both Content-Length and Transfer-Encoding.

    A proxy in front may trust the other header (RFC 9112, 6.1) and take a part of the body for the
    next request.
    """

    def next_event(self) -> Any:
        """Return the next event. Raises RemoteProtocolError for such a request."""
        event = super().next_event()
        if isinstance(event, h11.Request) and LENGTHS <= {name for name, _ in event.headers}:
            raise h11.RemoteProtocolError("Content-Length comes with Transfer-Encoding: send one")
        return event


class TimedConnection(H11Protocol):
    """uvicorn's connection with timeouts for slow clients.

    It closes if the head of a request takes longer than `timeout_s` to arrive, or if the client
    reads nothing of its answer for as long; uvicorn waits indefinitely for both. A client that has
    closed its sending side still gets its answer, and malformed HTTP gets an error in OpenAI's
    format.

    Attributes:
        waiting: shared by the connections of a server, which keep it up to date.
    """

    timeout_s: float
    waiting: Waiting

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn = OneLength(h11.SERVER)
        self._timers: dict[Literal["head", "stall", "probe", "linger"], asyncio.TimerHandle] = {}
        super().connection_made(transport)
        self._note_request()

    def data_received(self, data: bytes) -> None:
        if "linger" not in self._timers:
            super().data_received(data)
            self._note_request()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether to keep the sending side open, for the answer to a complete request."""
        if "linger" in self._timers or self.transport.is_closing():
            return False
        if not self._answering:
            if self.conn.trailing_data[0]:
                self._refuse(400, "the head of the request has no end")
            return False
        if self.conn.their_state is h11.SEND_BODY:
            self._refuse(400, "the body of the request has no end")
            return False
        self.cycle.keep_alive = False
        self._probe(PROBE_S)
        return self.scheme == "http"  # TLS cannot be half-closed.

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_request()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP. Called while h11's error is handled."""
        error = sys.exc_info()[1]
        head_too_large = isinstance(error, h11.ProtocolError) and error.error_status_hint == 431
        # Drop the part of the request that h11 quotes: it may be long.
        reason = str(error or msg).partition(": bytearray")[0]
        self._refuse(431 if head_too_large else 400, f"this is not HTTP/1.1: {reason}")
        self._timers["linger"] = self.loop.call_later(LINGER_S, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._timers["stall"] = self.loop.call_later(self.timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._timers.pop("stall").cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        for timer in self._timers.values():
            timer.cancel()
        super().connection_lost(exc)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _note_request(self) -> None:
        """Update `waiting` and the timer of the head, which starts with its first byte."""
        if self._answering or self.transport.is_closing():
            self.waiting.pop(self, None)
        else:
            self.waiting.setdefault(self, self.loop.time())
        if self.conn.their_state is not h11.IDLE:
            if timer := self._timers.pop("head", None):
                timer.cancel()
        elif "head" not in self._timers:
            self._timers["head"] = self.loop.call_later(self.timeout_s, self.transport.abort)

    def _probe(self, delay_s: float) -> None:
        """Send interim responses, at doubling intervals, to a client that sends no more.

        Only sending shows that a client is gone. The interim responses have no meaning.
        """
        self._timers["probe"] = self.loop.call_later(delay_s, self._send_probe, delay_s)

    def _send_probe(self, delay_s: float) -> None:
        if not self.transport.is_closing() and self.conn.our_state is h11.SEND_RESPONSE:
            if self.cycle.scope["http_version"] != "1.0":
                self.transport.write(self.conn.send(INTERIM) or b"")
                self._probe(2 * delay_s)

    def _refuse(self, status: int, message: str) -> None:
        """Send the last answer of this connection, unless an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(ApiError(status, message, code="invalid_http").body()).encode()
            headers = [("Content-Type", "application/json"), ("Connection", "close")]
            headers.append(("Content-Length", str(len(body))))
            answer = h11.Response(
                status_code=status, headers=headers, reason=STATUS_PHRASES[status]
            )
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def timed_connection(timeout_s: float, waiting: Waiting) -> type[TimedConnection]:
    shared = {"timeout_s": timeout_s, "waiting": waiting}
    return type("TimedConnection", (TimedConnection,), shared)
