"""A server over the fake engine, in this process and on a free port."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import openai
import pytest
import uvicorn
from fake_engine import CharTokenizer, FakeEngine

from serve.app import create_app
from serve.engine_thread import EngineThread
from serve.lifecycle import bind
from serve.metrics import Metrics
from serve.service import ModelInfo, Service


@dataclass(frozen=True)
class Served:
    """A running server: its engine, its service, and two clients."""

    engine: FakeEngine
    service: Service
    http: httpx.Client
    openai: openai.OpenAI


def build_service(engine: FakeEngine) -> Service:
    """A service over the fake engine; its drawn seeds are 1000, 1001, ..."""
    metrics = Metrics("fake")
    thread = EngineThread(engine, metrics)
    metrics.watch(lambda: thread.stats)
    seeds = iter(range(1000, 2000))
    model = ModelInfo(("fake", "alias"), "/models/fake", engine.max_model_len)
    return Service(model, CharTokenizer(), thread, metrics, {}, lambda: next(seeds))


@contextmanager
def served(engine: FakeEngine, wait_until_ready: bool = True) -> Iterator[Served]:
    """Runs a server in a thread for the time of the block."""
    service = build_service(engine)
    config = uvicorn.Config(create_app(service), log_level="error", ws="none")
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as address:
        url = f"http://127.0.0.1:{address.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([address],))
        thread.start()
        try:
            with (
                httpx.Client(base_url=url, timeout=20) as http,
                openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            ):
                while wait_until_ready and http.get("/health").status_code != 200:
                    time.sleep(0.01)
                yield Served(engine, service, http, client)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts servers over given engines; they end with the test."""
    with ExitStack() as stack:
        yield lambda engine, **options: stack.enter_context(served(engine, **options))


@pytest.fixture(scope="session")
def fake() -> Iterator[Served]:
    """One server for all tests that leave nothing behind."""
    with served(FakeEngine(step_s=0.001)) as server:
        yield server
