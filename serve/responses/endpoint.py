"""HTTP endpoint for responses: POST /v1/responses."""

import json
from typing import Any

import fastapi
from fastapi import APIRouter, Response

from serve.asgi.auth import client_of, key_owner
from serve.asgi.json_body import JsonRoute
from serve.openai.answer import respond
from serve.openai.service import Service
from serve.openai.thinking_variables import keep_header
from serve.responses.answer import ResponseAnswer
from serve.responses.output import without_logprobs
from serve.responses.planning import look_up, plan_response
from serve.responses.protocol import ResponseRequest
from serve.responses.store import ResponseStores, Turn


def responses_router(service: Service, stores: ResponseStores, max_body_bytes: int) -> APIRouter:
    """Return the endpoint over `service`. Responses go to their key's store by default.

    `max_body_bytes` limits a body together with the stored items that it refers to.
    """
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/responses")
    async def create_response(body: ResponseRequest, request: fastapi.Request) -> Response:
        service.check_model(body.model)
        client = client_of(request).name
        service.engine.check_room(1, client)
        owner = key_owner(request)
        store = stores.of(owner)
        room = max_body_bytes - len(await request.body())
        before = look_up(store, owner, body, room)
        planned = await plan_response(service, body, before, client)

        def keep(name: str, text: str, output: list[Any]) -> None:
            outputs = json.dumps([without_logprobs(item) for item in output]).encode()
            turn = Turn(name, text.encode(), planned.inputs, outputs, before.previous)
            store.put(owner, turn)

        kept = None if body.store is False else keep
        answer = ResponseAnswer(service, body, planned, kept)
        sent = await respond(service, request, answer, streamed=bool(body.stream))
        sent.headers.update(keep_header(service, planned.chat))
        return sent

    return router
