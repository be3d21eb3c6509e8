"""The record of one HTTP request: for its line in the log, and its span in a trace."""

import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.asgi.root_path import below_root
from serve.engine.choices import Choices

REQUEST_ID = "x-request-id"
ANTHROPICS_NAME = "request-id"
FIT_FOR_LOGS = re.compile(r"[\w.:@/+=-]{1,128}", re.ASCII)

LONGEST = 200
"""Characters of a method or a path that are kept."""


@dataclass
class RequestRecord:
    """A request from its head to the last byte of its answer; times are in seconds.

    generated: its choices, once it generates some. status: 499 if the client went away before there
    was one. route: the pattern that the path fits, None where there is none.
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
    """The same on the wall's clock, in nanoseconds since 1970."""
    duration: float = 0.0

    @property
    def time_to_first_token(self) -> float | None:
        """From the request's head to the first output of any choice."""
        first = self.generated and self.generated.first_output
        return None if first is None else first - self.began

    def fields(self) -> dict[str, Any]:
        """The record as a flat JSON object. Nothing in it was written by a prompt's author."""
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
"""Is given every record when its request has ended."""


def cut(text: str) -> str:
    """The text, or its beginning and its length: a client may send 60 kB of it."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


class Recorded:
    """Makes the record of every request, gives it an id and hands it to the handlers at its end.

    The id is the client's X-Request-ID if that is fit for a log, else a new one; the answer has it.
    stamp: other headers that every answer has.
    """

    def __init__(
        self, app: ASGIApp, handlers: Sequence[RecordHandler], stamp: Callable[[], dict[str, str]]
    ) -> None:
        self._app, self._handlers, self._stamp = app, handlers, stamp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
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
