"""HTTP endpoints of stored responses: GET and DELETE /v1/responses/{id}, GET .../input_items."""

from functools import partial
from typing import Annotated, Any

import fastapi
from fastapi import APIRouter, Query, Response

from serve.asgi.auth import key_owner
from serve.asgi.errors import invalid_request
from serve.engine.threads import in_thread
from serve.responses.listing import Order, input_items
from serve.responses.store import ResponseStores

MOST_LISTED = 100


def stored_router(stores: ResponseStores) -> APIRouter:
    """Return the endpoints over the stores. Each key has its own responses."""
    router = APIRouter()

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
        owner = key_owner(request)
        turn = stores.of(owner).get(owner, response_id)
        return Response(turn.body, media_type="application/json")

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
        owner = key_owner(request)
        turn = stores.of(owner).get(owner, response_id)
        listed = await in_thread(partial(input_items, turn, after, limit, order))
        return Response(listed, media_type="application/json")

    return router
