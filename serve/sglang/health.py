"""HTTP endpoint that generates a token as a health check: SGLang's GET /health_generate."""

import asyncio
import uuid

from fastapi import APIRouter, Response

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams
from serve.asgi.errors import ApiError
from serve.engine.errors import QueueFull
from serve.engine.thread import EngineThread

TIMEOUT_S = 20.0
LOOK_S = 0.05


def health_router(engine: EngineThread) -> APIRouter:
    """Return the endpoint. Probes need no key, so that concurrent ones share one token."""
    router = APIRouter()
    looking: asyncio.Task[bool] | None = None

    @router.get("/health_generate")
    async def health_generate() -> Response:
        """Return 200 once the engine produces a token, for any request; 503 after a timeout."""
        nonlocal looking
        engine.check_admitting()
        if looking is None or looking.done():
            looking = asyncio.create_task(_puts_out_tokens(engine))
        if not await asyncio.shield(looking):
            message = f"the engine has generated no token for {TIMEOUT_S:g} seconds"
            raise ApiError(503, message, code="unavailable")
        return Response()

    return router


async def _puts_out_tokens(engine: EngineThread) -> bool:
    """Return whether the engine produces a token within TIMEOUT_S.

    Tokens of other requests count: a long queue does not make a server unhealthy. Raises
    EngineError if the probe's own request fails.
    """
    before = engine.stats.generation_tokens
    asked = asyncio.create_task(_one_token(engine))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not asked.done() and engine.stats.generation_tokens == before:
                await asyncio.sleep(LOOK_S)
        return not asked.done() or asked.result()
    except TimeoutError:
        return False
    finally:
        asked.cancel()


async def _one_token(engine: EngineThread) -> bool:
    sampling = SamplingParams(temperature=0.0, max_tokens=1)
    request = Request(f"health-{uuid.uuid4().hex}", [0], sampling)
    try:
        stream = await engine.submit([request])
    except QueueFull:
        return await asyncio.Event().wait()  # Tokens of other requests decide.
    try:
        return bool([output async for output in stream])
    finally:
        engine.cancel(stream)
