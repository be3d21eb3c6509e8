"""The HTTP application: every protocol's endpoints, health and metrics over one engine thread."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

import jax.profiler
from fastapi import FastAPI, Response

from serve.anthropic.messages import messages_router
from serve.asgi.arrivals import Arriving
from serve.asgi.auth import RequireKey
from serve.asgi.body_limit import BodyLimit
from serve.asgi.errors import install_error_handlers
from serve.asgi.synthetic_header import synthetic_header
from serve.openai.answers.responses import ModelCard, ModelList
from serve.openai.chat import chat_router
from serve.openai.completions import completions_router
from serve.openai.service import Service
from serve.openai.tokenization import tokenization_router
from serve.options.operations import Operations
from serve.page import page_router
from serve.responses.endpoint import responses_router
from serve.responses.store import ResponseStore
from serve.responses.stored import stored_router
from serve.sglang.generate import generate_router
from serve.sglang.profiling import profiling_router
from serve.sglang.server_state import server_state_router
from serve.telemetry.exposition import CONTENT_TYPE, render
from serve.telemetry.record import Recorded, RecordHandler

STOP_TIMEOUT_S = 2.0


def create_app(
    service: Service,
    operations: Operations | None = None,
    record_handlers: Sequence[RecordHandler] = (),
) -> FastAPI:
    """The application; its lifespan starts the engine thread and stops it.

    record_handlers: are given the record of every request.
    """
    operations = operations or Operations()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        watching = asyncio.create_task(service.engine.watch(operations.watchdog_timeout_s))
        yield
        watching.cancel()
        await service.engine.stop(STOP_TIMEOUT_S)

    app = FastAPI(
        title="eagle3-jax",
        version=version("eagle3-jax"),
        lifespan=lifespan,
        # A redirect would name the host that the client named.
        redirect_slashes=False,
    )
    install_error_handlers(app)
    # The one added last is asked first.
    limits = {"max_bytes": operations.max_body_bytes, "timeout_s": operations.client_timeout_s}
    app.add_middleware(BodyLimit, **limits)
    if operations.api_keys:
        app.add_middleware(RequireKey, keys=operations.api_keys)
    app.add_middleware(Arriving, arrivals=service.arrivals)
    app.add_middleware(
        Recorded, handlers=record_handlers, stamp=lambda: synthetic_header(service.engine.stats)
    )
    app.include_router(completions_router(service))
    app.include_router(chat_router(service))
    responses = ResponseStore()
    app.include_router(responses_router(service, responses))
    app.include_router(stored_router(responses))
    app.include_router(messages_router(service))
    app.include_router(generate_router(service))
    app.include_router(tokenization_router(service))
    app.include_router(server_state_router(service, app.version))
    app.include_router(profiling_router(operations.profile_dir, jax.profiler))
    app.include_router(page_router())
    _add_models(app, service)
    _add_probes(app, service)
    return app


def _add_models(app: FastAPI, service: Service) -> None:
    model = service.model

    @app.get("/v1/models")
    async def list_models() -> ModelList:
        cards = [
            ModelCard(
                id=name, created=model.created, root=model.root, max_model_len=model.max_model_len
            )
            for name in model.names
        ]
        return ModelList(data=cards)


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        """200 once every program is compiled and while requests are taken."""
        service.engine.check_admitting()
        return Response()

    @app.head("/ping", include_in_schema=False)
    @app.post("/ping", include_in_schema=False)
    @app.get("/ping")
    async def ping() -> Response:
        """The same as /health, under the name that hosted platforms probe."""
        return await health()

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(render(service.metrics.registry), media_type=CONTENT_TYPE)

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": app.version}
