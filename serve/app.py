"""The HTTP application: endpoints of all protocols, health and metrics over one engine thread."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.metadata import version

import jax.profiler
from fastapi import FastAPI, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.anthropic.messages import messages_router
from serve.asgi.auth import Authenticate
from serve.asgi.body_limit import BodyLimit
from serve.asgi.errors import install_error_handlers
from serve.asgi.in_flight import InFlightMiddleware
from serve.asgi.known_hosts import KnownHosts
from serve.asgi.sse import synthetic_header
from serve.engine.messages import Profiler
from serve.openai.chat import chat_router
from serve.openai.completions import completions_router
from serve.openai.models import models_router
from serve.openai.service import Service
from serve.openai.tokenization import tokenization_router
from serve.options.http import HttpOptions
from serve.options.operations import Operations
from serve.page import page_router
from serve.responses.endpoint import responses_router
from serve.sglang.abort import abort_router
from serve.sglang.generate import generate_router
from serve.sglang.health import health_router
from serve.sglang.profiling import profiling_router
from serve.sglang.server_state import server_state_router
from serve.telemetry.metrics import CONTENT_TYPE, render
from serve.telemetry.record import Recorded, RecordHandler


class HeadAsGet:
    """Middleware that passes HEAD to the application as GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        await self._app(asked, receive, send)
        scope["route"] = asked.get("route")  # For the record of the request.


STOP_TIMEOUT_S = 2.0


def create_app(
    service: Service,
    operations: Operations | None = None,
    record_handlers: Sequence[RecordHandler] = (),
    http: HttpOptions | None = None,
    profiler: Profiler = jax.profiler,
) -> FastAPI:
    """Return the application. Its lifespan starts and stops the engine thread.

    `record_handlers` get each request's record. `profiler` traces the processes with devices.
    """
    operations, http = operations or Operations(), http or HttpOptions()

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
        # A redirect would send the client to whatever its own Host header names.
        redirect_slashes=False,
    )
    app.root_path = http.root_path
    install_error_handlers(app)
    _add_middleware(app, service, operations, http, record_handlers)
    for router in (
        completions_router(service),
        chat_router(service),
        messages_router(service),
        responses_router(service, len(operations.api_keys), operations.max_body_bytes),
        generate_router(service),
        abort_router(service.engine),
        tokenization_router(service),
        server_state_router(service, app.version),
        profiling_router(operations.profile_dir, profiler),
        models_router(service),
        health_router(service.engine),
        page_router(),
    ):
        app.include_router(router)
    _add_probes(app, service)
    return app


def _add_middleware(
    app: FastAPI,
    service: Service,
    operations: Operations,
    http: HttpOptions,
    record_handlers: Sequence[RecordHandler],
) -> None:
    """Add the middleware. The last one added handles a request first."""
    app.add_middleware(HeadAsGet)
    limits = {"max_bytes": operations.max_body_bytes, "timeout_s": operations.client_timeout_s}
    app.add_middleware(BodyLimit, **limits)
    keys = {"keys": operations.api_keys, "admin_key": operations.admin_api_key}
    app.add_middleware(Authenticate, **keys)
    app.add_middleware(InFlightMiddleware, in_flight=service.in_flight)
    if http.cors:
        # Outside authentication: a browser sends its preflight without a key, and must read errors
        # too.
        app.add_middleware(CORSMiddleware, **asdict(http.cors))
    if http.checks_hosts:
        app.add_middleware(KnownHosts, names=http.allowed_hosts)
    app.add_middleware(
        Recorded,
        handlers=(service.metrics.on_record, *record_handlers),
        stamp=lambda: synthetic_header(service.engine.stats),
    )


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Return 200 once every program is compiled and while requests are admitted."""
        service.engine.check_admitting()
        return Response()

    @app.post("/ping", include_in_schema=False)
    @app.get("/ping")
    async def ping() -> Response:
        """Return the same as /health, under the name that hosted platforms probe."""
        return await health()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(render(service.metrics.registry), media_type=CONTENT_TYPE)

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": app.version}
