"""A server over the fake engine: in a thread of the tests, or as a process of its own."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx
import openai
import uvicorn
from fake_engine import MAX_MODEL_LEN, CharTokenizer, FakeEngine

from eagle3_jax.engine.grammar import Grammars
from serve.app import create_app
from serve.engine_thread import EngineLike, EngineThread
from serve.lifecycle import GracefulServer, bind
from serve.metrics import Metrics
from serve.options import SpecMetricsLevel
from serve.service import ModelInfo, Service, TokenizerLike


@dataclass(frozen=True)
class Served:
    """A running server: its service, and two clients."""

    service: Service
    http: httpx.Client
    openai: openai.OpenAI
    engine: FakeEngine = field(default_factory=FakeEngine)


def build_service(
    engine: EngineLike,
    tokenizer: TokenizerLike | None = None,
    spec_metrics: SpecMetricsLevel = "none",
    grammars: Grammars | None = None,
) -> Service:
    """A service over the engine; its drawn seeds are 1000, 1001, ..."""
    metrics = Metrics("fake")
    thread = EngineThread(engine, metrics)
    metrics.watch(lambda: thread.stats)
    model = ModelInfo(("fake", "alias"), "/models/fake", MAX_MODEL_LEN)
    tokenizer = tokenizer or CharTokenizer()
    draw_seed = partial(next, iter(range(1000, 2000)))
    return Service(model, tokenizer, thread, metrics, {}, draw_seed, spec_metrics, grammars)


@contextmanager
def served_by(
    engine: EngineLike,
    tokenizer: TokenizerLike | None = None,
    wait_until_ready: bool = True,
    spec_metrics: SpecMetricsLevel = "none",
    grammars: Grammars | None = None,
) -> Iterator[Served]:
    """Runs a server in a thread for the time of the block."""
    service = build_service(engine, tokenizer, spec_metrics, grammars)
    config = uvicorn.Config(create_app(service), log_level="error", ws="none")
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as address:
        url = f"http://127.0.0.1:{address.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([address],))
        thread.start()
        try:
            with (
                httpx.Client(base_url=url, timeout=30) as http,
                openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            ):
                while wait_until_ready and http.get("/health").status_code != 200:
                    time.sleep(0.01)
                yield Served(service, http, client)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(engine: FakeEngine, **options: Any) -> Iterator[Served]:
    """A server over a fake engine, which tests can look into."""
    with served_by(engine, **options) as server:
        yield replace(server, engine=engine)


async def serve_until_signal() -> None:
    """Prints its port, answers slowly, drains on SIGTERM."""
    service = build_service(FakeEngine(step_s=0.02))
    server = GracefulServer(create_app(service), service.engine, drain_timeout_s=5.0)
    with bind("127.0.0.1", 0) as address:
        print(address.getsockname()[1], flush=True)
        await server.serve(sockets=[address])


if __name__ == "__main__":
    asyncio.run(serve_until_signal())
