"""HTTP endpoint that asks the engine for a token: SGLang's GET /health_generate."""

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
    """The endpoint. Whoever asks while a token is on its way waits for the same one, so that
    probes, which need no key, cost next to nothing."""
    router = APIRouter()
    looking: asyncio.Task[bool] | None = None

    @router.get("/health_generate")
    async def health_generate() -> Response:
        """200 once the engine puts out a token, for this request or for others; else 503."""
        nonlocal looking
        engine.check_admitting()
        if looking is None or looking.done():
            looking = asyncio.create_task(_puts_out_tokens(engine))
        if not await asyncio.shield(looking):
            message = f"the engine has put out no token for {TIMEOUT_S:g} seconds"
            raise ApiError(503, message, code="unavailable")
        return Response()

    return router


async def _puts_out_tokens(engine: EngineThread) -> bool:
    """Whether it does within TIMEOUT_S; raises EngineError where its own token fails.

    Those of others count: a long queue before a new request is no illness.
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
        return await asyncio.Event().wait()  # Others' tokens will tell.
    try:
        return bool([output async for output in stream])
    finally:
        engine.cancel(stream)
