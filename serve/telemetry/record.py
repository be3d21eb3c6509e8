"""The record of one HTTP request, for its log line and its trace span."""

import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.asgi.errors import below_root
from serve.engine.choices import Choices

REQUEST_ID = "x-request-id"
ANTHROPICS_NAME = "request-id"
FIT_FOR_LOGS = re.compile(r"[\w.:@/+=-]{1,128}", re.ASCII)

LONGEST = 200
"""Maximum characters of a method or path in a record."""


@dataclass
class RequestRecord:
    """A request from its head to the last byte of its answer. Times are in seconds.

    Attributes:
        generated: its choices, if it generates any.
        status: 499 if the client disconnected before there was one.
        route: the pattern that matches the path, or None.
    """

    request_id: str
    method: str
    path: str
    headers: Headers = field(repr=False)
    status: int = 499
    route: str | None = None
    generated: Choices | None = field(default=None, repr=False)
    began: float = field(default_factory=time.monotonic)
    began_ns: int = field(default_factory=time.time_ns)
    """The time in `began` on the wall clock, in nanoseconds since 1970."""
    duration: float = 0.0

    @property
    def time_to_first_token(self) -> float | None:
        """Time from the request's head to the first output of any choice."""
        first = self.generated and self.generated.first_output
        return None if first is None else first - self.began

    def fields(self) -> dict[str, Any]:
        """Return the record as a flat JSON object, without text of a prompt."""
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "method": cut(self.method),
            "path": cut(self.path),
            "status": self.status,
            "duration_s": round(self.duration, 6),
        }
        if (generated := self.generated) is None:
            return fields
        first, counts = self.time_to_first_token, generated.counts
        return fields | {
            "prompt_tokens": counts.prompt,
            "cached_tokens": counts.cached,
            **counts.cached_details,
            "completion_tokens": counts.completion,
            "accepted_tokens": generated.accepted_tokens,
            "finish_reason": ",".join(dict.fromkeys(generated.finish_reasons)),
            "ttft_s": None if first is None else round(first, 6),
        }


RecordHandler = Callable[[RequestRecord], None]
"""Called with every record when its request has ended."""


def cut(text: str) -> str:
    """Truncate a long text and append its length: a client may send 60 kB of it."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


class Recorded:
    """Middleware that records every request, assigns its id and passes it to the handlers.

    The id is the client's X-Request-ID if that is safe to log, else a new one, and is in the
    answer. `stamp` returns further headers for every answer.
    """

    def __init__(
        self, app: ASGIApp, handlers: Sequence[RecordHandler], stamp: Callable[[], dict[str, str]]
    ) -> None:
        self._app, self._handlers, self._stamp = app, handlers, stamp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        request_id = given if FIT_FOR_LOGS.fullmatch(given) else uuid.uuid4().hex
        record = RequestRecord(request_id, scope["method"], below_root(scope), headers)
        scope.setdefault("state", {})["record"] = record

        async def send_noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                ids = dict.fromkeys((REQUEST_ID, ANTHROPICS_NAME), request_id)
                MutableHeaders(scope=message).update(ids | self._stamp())
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception:
            record.status = 500
            raise
        finally:
            record.duration = time.monotonic() - record.began
            record.route = getattr(scope.get("route"), "path", None)
            for handle in self._handlers:
                handle(record)
