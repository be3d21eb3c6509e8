"""HTTP endpoints that empty the prefix cache: /flush_cache (SGLang), /reset_prefix_cache (vLLM)."""

import asyncio
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query

from serve.asgi.errors import invalid_request
from serve.openai.service import Service

MAX_WAIT_S = 600.0


def cache_router(service: Service) -> APIRouter:
    """The endpoints; both wait up to `timeout` seconds until no request is under way, and refuse
    while there is one."""
    router, engine = APIRouter(), service.engine

    @router.post("/flush_cache")
    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache(
        timeout: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0,
    ) -> dict[str, bool]:
        engine.check_admitting()
        with suppress(TimeoutError):
            await asyncio.wait_for(engine.idle(), timeout)
        if not await engine.reset_prefix_cache():
            message = "the cache is in use: requests are under way; set timeout to wait for them"
            raise invalid_request(message, code="cache_in_use")
        return {"success": True}

    return router
