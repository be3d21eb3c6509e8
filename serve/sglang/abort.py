"""HTTP endpoint that aborts requests: SGLang's POST /abort_request.

An engine request has its client's `rid` appended to its id, so that no table of them is needed.
"""

from collections.abc import Callable
from dataclasses import replace

import fastapi
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from eagle3_jax.engine import Request
from serve.asgi.auth import client_of
from serve.asgi.errors import invalid_request
from serve.asgi.json_body import JsonRoute
from serve.engine.thread import EngineThread
from serve.openai.protocol import MAX_NAME_CHARS

MARK = ":"
PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_")
"""Prefixes of each protocol's answer ids. The engine's request id follows, without its index."""


class AbortRequest(BaseModel):
    """The body of POST /abort_request. `rid`: that of /generate, or an answer's id."""

    rid: str | None = Field(None, min_length=1, max_length=MAX_NAME_CHARS)
    abort_all: bool = False


def abort_router(engine: EngineThread) -> APIRouter:
    """Return the endpoint. It also answers 200 for a request that does not exist or just ended."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/abort_request")
    async def abort_request(body: AbortRequest, request: fastapi.Request) -> Response:
        """Abort the client's requests, or all for an admin. Partial answers finish with `abort`."""
        if body.rid is None and not body.abort_all:
            raise invalid_request("give a rid, or abort_all: true", param="rid")
        meant = (lambda _: True) if body.abort_all else _answering_to(body.rid or "")
        client = client_of(request)
        engine.abort(meant, None if client.is_admin else client.name)
        return Response()

    return router


def known_as(request: Request, rid: str | None) -> Request:
    """Return the request with the client's `rid` in its id."""
    return replace(request, request_id=f"{request.request_id}{MARK}{rid}") if rid else request


def _answering_to(rid: str) -> Callable[[str], bool]:
    for prefix in PREFIXES:
        rid = rid.removeprefix(prefix)

    def meant(request_id: str) -> bool:
        own, _, given = request_id.partition(MARK)
        return rid in (given, own, own.rpartition("-")[0])

    return meant
