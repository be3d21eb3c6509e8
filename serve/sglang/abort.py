"""HTTP endpoint that gives requests up: SGLang's POST /abort_request.

A request of the engine carries its client's `rid` behind its own id, so that there is no list of
them to keep.
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
"""Of each protocol's ids, behind which are those of the engine, but for their number."""


class AbortRequest(BaseModel):
    """rid: of /generate, or the id of an answer under way."""

    rid: str | None = Field(None, min_length=1, max_length=MAX_NAME_CHARS)
    abort_all: bool = False


def abort_router(engine: EngineThread) -> APIRouter:
    """The endpoint; 200 also where there is no such request, which may have just ended."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/abort_request")
    async def abort_request(body: AbortRequest, request: fastapi.Request) -> Response:
        """End requests of the client, or of every client for an admin. What there is of the answers
        goes out, with the finish reason `abort`."""
        if body.rid is None and not body.abort_all:
            raise invalid_request("give a rid, or abort_all: true", param="rid")
        meant = (lambda _: True) if body.abort_all else _answering_to(body.rid or "")
        client = client_of(request)
        engine.abort(meant, None if client.is_admin else client.name)
        return Response()

    return router


def known_as(request: Request, rid: str | None) -> Request:
    """The request under a name that its client has given it."""
    return replace(request, request_id=f"{request.request_id}{MARK}{rid}") if rid else request


def _answering_to(rid: str) -> Callable[[str], bool]:
    for prefix in PREFIXES:
        rid = rid.removeprefix(prefix)

    def meant(request_id: str) -> bool:
        own, _, given = request_id.partition(MARK)
        return rid in (given, own, own.rpartition("-")[0])

    return meant
