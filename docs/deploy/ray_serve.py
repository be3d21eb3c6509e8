"""Replicas of the server behind Ray Serve; extra `ray`.

    python docs/deploy/ray_serve.py --max-replicas 4 --gpus 8 -- MODEL --tensor-parallel-size 8

Each replica is an actor with an engine of its own, on the GPUs that Ray gives it, and the server's
own application as its ingress: what is asked comes to it as it was sent, streams and clients that
hang up too. Ray starts more replicas while each has more requests under way than it should have,
and another one for one whose engine has died.
"""

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from ray import serve

if TYPE_CHECKING:
    from serve.openai.service import Service

services: "list[Service]" = []
"""Of the replica of this process."""


def build(flags: Sequence[str]) -> FastAPI:
    """The application of these flags of eagle3-serve, which starts when its programs are compiled;
    made in the replica, where JAX sees the GPUs that are its own."""
    from serve.application import build_app
    from serve.options.serve_flags import parse_serve_flags

    app, service = build_app(parse_serve_flags(flags)[0])
    services.append(service)
    begin = app.router.lifespan_context

    @asynccontextmanager
    async def compiled(app: FastAPI) -> AsyncIterator[None]:
        async with begin(app):
            await service.engine.ready.wait()
            yield

    app.router.lifespan_context = compiled
    return app


def deployment(flags: Sequence[str], **options: Any) -> serve.Application:
    """Replicas of these flags. options: of Ray Serve's deployment."""

    def make() -> FastAPI:
        return build(flags)

    @serve.deployment(max_ongoing_requests=256, health_check_period_s=2)
    @serve.ingress(make)
    class Replica:
        """One engine and its application."""

        def check_health(self) -> None:
            """Ray calls it, and replaces the replica when it raises."""
            if services and services[0].engine.dead.is_set():
                raise RuntimeError("the engine has died")

    return Replica.options(**options).bind()


def main() -> None:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Replicas of eagle3-serve behind Ray Serve.")
    parser.add_argument("--min-replicas", type=int, default=1)
    parser.add_argument("--max-replicas", type=int, default=1)
    parser.add_argument(
        "--target-requests", type=int, default=64, help="under way in each, waiting ones included"
    )
    parser.add_argument("--gpus", type=float, default=0, help="of each replica")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("flags", nargs="*", help="of eagle3-serve, behind --")
    options = parser.parse_args()
    scaling = {"min_replicas": options.min_replicas, "max_replicas": options.max_replicas}
    serve.start(http_options={"host": options.host, "port": options.port})
    replicas = deployment(
        options.flags,
        autoscaling_config={**scaling, "target_ongoing_requests": options.target_requests},
        ray_actor_options={"num_gpus": options.gpus},
    )
    serve.run(replicas, name="eagle3", blocking=True)


if __name__ == "__main__":
    main()
