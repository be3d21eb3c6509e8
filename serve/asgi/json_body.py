"""Parses JSON bodies within limits. Long bodies are parsed and tokenised in threads.

Parsing and validation hold Python's global lock throughout. Their cost is therefore bounded
beforehand by the number of values; lists, objects and keys cost the most.
"""

import json
import re
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from serve.asgi.errors import ApiError, from_validation, invalid_request
from serve.engine.threads import Threads, in_thread

T = TypeVar("T")

MAX_VALUES = 2**20
MAX_PARTS = 2**16
"""Limit of lists, objects and object keys together."""
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
CLOSED = re.compile(rb'(?:[^"]*+"[^"\\]*+(?:\\.[^"\\]*+)*+")*+[^"]*+', re.DOTALL)
WINDOW = 2**16
"""Bytes examined by one call, during which other threads wait for Python's global lock."""

LONG_BYTES = 20_000
"""Body size that takes about 10 ms to parse or tokenise. Below it a thread would cost more."""

_threads = Threads("bodies", 1)
templating = Threads("templates", 2).run
"""Runs work that renders a template: never on the event loop, however short it is."""


async def read_json(body: bytes, check: Callable[[Any], Any] = lambda value: value) -> Any:
    """Parse a body and return what `check` makes of its value.

    Raises 400 if the body is not JSON, or has more than MAX_VALUES values or MAX_PARTS lists,
    objects and keys. Errors of `check` propagate.
    """
    work = partial(_read, body, check)
    return work() if len(body) < LONG_BYTES else await _threads.run(work)


async def tokenising(request: Request, work: Callable[[], T]) -> T:
    """Run tokenisation work for this request. Tokenizers release Python's global lock."""
    if len(await request.body()) < LONG_BYTES:
        return work()
    return await in_thread(work)


class JsonRoute(APIRoute):
    """Route whose body is parsed by `read_json` and validated in the same call."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that parses first. The framework accepts a validated model as it is."""
        handle = super().get_route_handler()
        model = self.body_field and self.body_field.field_info.annotation
        if model is None:
            return handle
        check = partial(_checked, TypeAdapter(model))

        async def read_first(request: Request) -> Response:
            reads = _JsonRequest(request.scope, request.receive)
            if body := await reads.body():
                _require_json(request.headers.get("content-type"))
                reads.value = await read_json(body, check)
            return await handle(reads)

        return read_first


class _JsonRequest(Request):
    """Request whose body is parsed already."""

    value: Any = None

    async def json(self) -> Any:
        return self.value


def _require_json(content_type: str | None) -> None:
    """Raise 415 for another content type: any web page can send those without a CORS preflight."""
    if "json" not in (content_type or ""):
        got = "there is no such header" if content_type is None else f"got {content_type[:100]}"
        message = f"the body must come with the header `Content-Type: application/json`; {got}"
        raise ApiError(415, message, code="unsupported_media_type")


def _checked(adapter: TypeAdapter[Any], value: Any) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise from_validation(error) from None


def _read(body: bytes, check: Callable[[Any], Any]) -> Any:
    refuse_too_much([body])
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise _not_json(error.msg) from error
    except ValueError as error:
        raise _not_json(str(error)) from error
    except RecursionError as error:
        raise _not_json("it is nested too deeply") from error
    return check(value)


def refuse_too_much(texts: Sequence[bytes]) -> None:
    """Raise 400 if JSON texts together exceed the limits of a body."""
    for count in (_marks, _marks_outside_texts):  # The second is slower, but skips strings.
        marks = [(0, 0), *map(count, texts)]
        if not _exceeds(*(sum(numbers) for numbers in zip(*marks, strict=True))):
            return
    message = f"the body has more than {MAX_VALUES} values, or {MAX_PARTS} lists, objects and keys"
    raise invalid_request(f"{message}: send it in parts", code="too_many_values")


def _marks_outside_texts(body: bytes) -> tuple[int, int]:
    """Count values and parts outside strings, until a limit is exceeded. Strings are values too."""
    texts = commas = parts = 0
    quote = escape = b""  # An open string, or escape in it, that continues in the next window.
    for start in range(0, len(body), WINDOW):
        piece = quote + escape + body[start : start + WINDOW]
        escape = b"\\" * ((len(piece) - len(piece.rstrip(b"\\"))) % 2)
        piece = piece[: len(piece) - len(escape)]
        closed = CLOSED.match(piece)
        end = closed.end() if closed else 0
        quote = piece[end : end + 1]
        bare, count = TEXT.subn(b"", piece[:end])
        more = _marks(bare)
        texts, commas, parts = texts + count, commas + more[0], parts + more[1]
        if _exceeds(max(commas, texts - parts), parts):
            break
    return max(commas, texts - parts), parts


def _marks(body: bytes) -> tuple[int, int]:
    """Count commas (about one per value) and `[`, `{` and `:` (lists, objects and keys)."""
    parts = sum(body.count(mark) for mark in (b"[", b"{", b":"))
    return body.count(b","), parts


def _exceeds(commas: int, parts: int) -> bool:
    return commas >= MAX_VALUES or parts > MAX_PARTS


def _not_json(reason: str) -> ApiError:
    return invalid_request(f"the body is not valid JSON: {reason}", code="invalid_json")
