"""HTTP endpoints that describe the server and clear its prefix cache.

Their names are SGLang's (those with get_ are its older ones), and vLLM's /load and
/reset_prefix_cache.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from serve.asgi.auth import admin_only
from serve.asgi.errors import invalid_request
from serve.openai.service import Service

MAX_WAIT_S = 600.0


def server_state_router(service: Service, version: str) -> APIRouter:
    router, model, engine = APIRouter(), service.model, service.engine
    facts = _facts(service)

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        return {**facts, "is_generation": True}

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        """Return SGLang's server info. Its accept length covers all rounds, with bonus tokens."""
        stats = engine.stats
        state = {
            "avg_spec_accept_length": stats.accept_length,
            "num_running_reqs": stats.num_running,
            "num_waiting_reqs": stats.num_waiting,
        }
        return {
            **facts,
            "served_model_name": model.names[0],
            "context_length": model.max_model_len,
            "speculative_num_steps": stats.num_speculative_tokens,
            "version": version,
            "internal_states": [state],
        }

    @router.get("/load")
    async def load() -> dict[str, int]:
        """Return the number of running and waiting sequences."""
        stats = engine.stats
        return {"server_load": stats.num_running + stats.num_waiting}

    @router.post("/flush_cache", dependencies=[Depends(admin_only)])
    @router.post("/reset_prefix_cache", dependencies=[Depends(admin_only)])
    async def reset_prefix_cache(
        timeout: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0,
    ) -> dict[str, bool]:
        # Waits up to `timeout` seconds until no request is in flight; refused if one still is.
        engine.check_admitting()
        with suppress(TimeoutError):
            await asyncio.wait_for(engine.idle(), timeout)
        if not await engine.reset_prefix_cache():
            message = "the cache is in use: requests are in flight; set timeout to wait for them"
            raise invalid_request(message, code="cache_in_use")
        return {"success": True}

    return router


def _facts(service: Service) -> dict[str, Any]:
    """Return the model's fields in all descriptions."""
    paths = dict.fromkeys(("model_path", "tokenizer_path"), service.model.root)
    return {**paths, "has_image_understanding": service.images.takes}
