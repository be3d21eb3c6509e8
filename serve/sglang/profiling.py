"""HTTP endpoints for JAX's profiler: POST /start_profile and /stop_profile.

Traces are written below --profile-dir. Only the command line sets it: requests name no path.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, Request

from serve.asgi.auth import admin_only
from serve.asgi.errors import ApiError, invalid_request
from serve.asgi.json_body import read_json
from serve.engine.messages import Profiler
from serve.engine.threads import in_thread

NO_DIRECTORY = "this server writes no traces; start it with --profile-dir DIR"
IGNORED = ("output_dir", "activities", "with_stack", "record_shapes", "profile_by_stage")
"""SGLang's fields without effect here."""


def profiling_router(directory: Path | None, profiler: Profiler) -> APIRouter:
    """Return the endpoints. Their body is empty or SGLang's JSON."""
    router, lock = APIRouter(), asyncio.Lock()
    running = False

    @router.post("/start_profile", dependencies=[Depends(admin_only)])
    async def start_profile(request: Request) -> dict[str, Any]:
        nonlocal running
        fields = await _fields(await request.body())
        if directory is None:
            raise invalid_request(NO_DIRECTORY, code="unsupported_option")
        if fields.get("num_steps") is not None:
            message = "num_steps is not implemented in this release; end traces with /stop_profile"
            raise invalid_request(message, param="num_steps", code="unsupported_option")
        async with lock:
            if running:
                raise ApiError(
                    409,
                    "a trace is running already: end it with /stop_profile",
                    code="profile_running",
                )
            await in_thread(partial(profiler.start_trace, str(directory)))
            running = True
        ignored = [name for name in IGNORED if fields.get(name) is not None]
        return {"success": True, "ignored": ignored}

    @router.post("/stop_profile", dependencies=[Depends(admin_only)])
    async def stop_profile() -> dict[str, Any]:
        nonlocal running
        async with lock:
            if not running:
                raise ApiError(
                    409, "no trace is running: begin one with /start_profile", code="no_profile"
                )
            running = False
            await in_thread(profiler.stop_trace)
        return {"success": True}

    return router


async def _fields(body: bytes) -> dict[str, Any]:
    fields = await read_json(body) if body.strip() else {}
    if not isinstance(fields, dict):
        raise invalid_request("the body must be a JSON object, or empty")
    return fields
