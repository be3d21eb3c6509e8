"""HTTP connections that don't wait for ever for a client, and answer it as long as it reads."""

import asyncio
import json
import sys
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from serve.asgi.errors import ApiError

LINGER_S = 2.0
"""How long what a client still sends behind a malformed request is thrown away: hung up on at once,
it would meet a connection that was reset, not its answer."""
PROBE_S = 0.5
INTERIM = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")

Waiting = dict[H11Protocol, float]
"""Connections without a request, and since when on the loop's clock; the longest first."""


LENGTHS = {b"content-length", b"transfer-encoding"}


class OneLength(h11.Connection):
    """HTTP/1.1, without requests that state the length of their body in two ways.

    A proxy in front may believe the other one (RFC 9112, 6.1), and take a part of the body for the
    next request.
    """

    def next_event(self) -> Any:
        """Return the next event; RemoteProtocolError for such a request."""
        event = super().next_event()
        if isinstance(event, h11.Request) and LENGTHS <= {name for name, _ in event.headers}:
            raise h11.RemoteProtocolError("Content-Length comes with Transfer-Encoding: send one")
        return event


class TimedConnection(H11Protocol):
    """uvicorn's connection, closed when the head of a request takes longer than `timeout_s` to
    arrive, or the client reads nothing of its answer for as long.

    uvicorn itself waits for both as long as the connection lives. Besides, a client that has ended
    its own side gets its answer, and what is no HTTP gets an error in OpenAI's form.

    waiting: is kept up to date with the connections of this class.
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
        """Whether the other direction stays open: for the answer to a whole request."""
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
        return self.scheme == "http"  # TLS has no half of a connection.

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_request()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP; called while h11's error is handled."""
        error = sys.exc_info()[1]
        head_too_large = isinstance(error, h11.ProtocolError) and error.error_status_hint == 431
        # What h11 quotes of the request is left out: it may be long.
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
        """Times the head. Between requests uvicorn's keep-alive has its own time; this one
        begins with data."""
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
        """Finds out whether a client that sends no more has gone, which shows only in sending: it
        gets an interim response that means nothing, each twice as late as the one before."""
        self._timers["probe"] = self.loop.call_later(delay_s, self._send_probe, delay_s)

    def _send_probe(self, delay_s: float) -> None:
        if not self.transport.is_closing() and self.conn.our_state is h11.SEND_RESPONSE:
            if self.cycle.scope["http_version"] != "1.0":
                self.transport.write(self.conn.send(INTERIM) or b"")
                self._probe(2 * delay_s)

    def _refuse(self, status: int, message: str) -> None:
        """The last answer of this connection, if none has begun."""
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
    """The class of a server's connections."""
    shared = {"timeout_s": timeout_s, "waiting": waiting}
    return type("TimedConnection", (TimedConnection,), shared)
