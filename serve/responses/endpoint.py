"""HTTP endpoints for responses: POST /v1/responses, and GET and DELETE of stored ones."""

import json
from functools import partial
from typing import Annotated, Any

import fastapi
from fastapi import APIRouter, Query, Response

from serve.asgi.auth import client_of, key_owner
from serve.asgi.errors import invalid_request
from serve.asgi.json_body import JsonRoute
from serve.engine.threads import in_thread
from serve.openai.answer import respond
from serve.openai.service import Service
from serve.openai.thinking_variables import keep_header
from serve.responses.answer import ResponseAnswer
from serve.responses.listing import Order, input_items
from serve.responses.output import without_logprobs
from serve.responses.planning import look_up, plan_response
from serve.responses.protocol import ResponseRequest
from serve.responses.store import ResponseStores, StoredTurn

MOST_LISTED = 100


def responses_router(service: Service, num_keys: int, max_body_bytes: int) -> APIRouter:
    """Return the endpoints over `service`. Responses go to their key's store by default.

    `num_keys` is the number of API keys. `max_body_bytes` limits a body together with the stored
    items that it refers to.
    """
    router, stores = APIRouter(route_class=JsonRoute), ResponseStores(num_keys)
    service.metrics.watch_responses(stores)

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
            turn = StoredTurn(name, text.encode(), planned.inputs, outputs, before.previous)
            store.put(owner, turn)

        kept = None if body.store is False else keep
        answer = ResponseAnswer(service, body, planned, kept)
        sent = await respond(service, request, answer, streamed=bool(body.stream))
        sent.headers.update(keep_header(service, planned.chat))
        return sent

    _add_stored(router, stores)
    return router


def _add_stored(router: APIRouter, stores: ResponseStores) -> None:
    """Add the endpoints of stored responses. Each key has its own."""

    def stored(request: fastapi.Request, response_id: str) -> StoredTurn:
        owner = key_owner(request)
        return stores.of(owner).get(owner, response_id)

    @router.get("/v1/responses/{response_id}")
    async def retrieve_response(
        response_id: str,
        request: fastapi.Request,
        stream: bool = False,
        starting_after: int | None = None,
    ) -> Response:
        """Return the response as it was created, with what its `include` asked for then."""
        if stream or starting_after is not None:
            param = "stream" if stream else "starting_after"
            message = f"{param}: only a new response can be streamed; leave it out"
            raise invalid_request(message, param=param, code="unsupported_option")
        return Response(stored(request, response_id).body, media_type="application/json")

    @router.delete("/v1/responses/{response_id}")
    async def delete_response(response_id: str, request: fastapi.Request) -> dict[str, Any]:
        owner = key_owner(request)
        stores.of(owner).delete(owner, response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    @router.get("/v1/responses/{response_id}/input_items")
    async def list_input_items(
        response_id: str,
        request: fastapi.Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 20,
        order: Order = "desc",
    ) -> Response:
        turn = stored(request, response_id)
        listed = await in_thread(partial(input_items, turn, after, limit, order))
        return Response(listed, media_type="application/json")
