"""A server over the fake engine: in a thread of the tests, or as a process of its own."""

import argparse
import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import httpx
import openai
from fake_engine import MAX_MODEL_LEN, CharTokenizer, FakeEngine

from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.grammars.interface import Grammars
from serve.app import create_app
from serve.asgi.accepting import raise_limit, room_for_connections, tls_context
from serve.asgi.graceful import GracefulServer, bind, run_to_end
from serve.chat_format.format import choose_reading
from serve.engine.grammar_pool import GrammarPool
from serve.engine.messages import EngineLike
from serve.engine.thread import EngineThread
from serve.hosts.runtime import exit_now
from serve.kv_events.publisher import KVEventPublisher
from serve.openai.service import ModelInfo, Service, TokenizerLike
from serve.options.http import HttpOptions
from serve.options.operations import Operations
from serve.telemetry.logs import configure_logging
from serve.telemetry.metrics import Metrics
from serve.telemetry.record import RecordHandler

TRUSTED = ssl.create_default_context()
"""Read once: each client would read all certificates, 35 ms of a processor."""


@dataclass(frozen=True)
class Served:
    """A running server: its service, and two clients."""

    service: Service
    http: httpx.Client
    openai: openai.OpenAI
    engine: FakeEngine = field(default_factory=FakeEngine)

    def ask(self, path: str, /, **body: Any) -> Any:
        """The JSON of an answer, which must be a 200."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error of an answer, whose status and form are checked."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, (body, answer.text)
        return answer.json()["error"]

    def events(self, path: str, /, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream of OpenAI's form, whose framing is checked."""
        *lines, done, end = self.http.post(path, json=body | {"stream": True}).text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        assert all(line.startswith("data: ") and "\n" not in line for line in lines)
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def named_events(self, path: str, /, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream whose events have names, each of which says its own."""
        found = []
        text = self.http.post(path, json=body | {"stream": True}).text
        for block in text.removesuffix("\n\n").split("\n\n"):
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
        return found


HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello", "max_tokens": 6},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 6},
    "/v1/responses": {"input": "hello", "max_output_tokens": 6},
    "/v1/messages": {"messages": HELLO, "max_tokens": 6},
    "/generate": {"text": "hello", "sampling_params": {"max_new_tokens": 6}},
}
"""A request of each protocol for six tokens."""
Serve = Callable[..., Served]
"""Starts servers of given engines, or of given answers."""


def build_service(
    engine: EngineLike,
    tokenizer: TokenizerLike | None = None,
    grammars: Grammars | None = None,
    max_queued: int = Operations.max_queued,
    kv_events: KVEventPublisher | None = None,
) -> Service:
    """A service over the engine; its drawn seeds are 1000, 1001, ..."""
    metrics = Metrics("fake")
    publish = [kv_events.publish] if kv_events else []
    thread = EngineThread(engine, metrics, max_queued=max_queued, between_steps=publish)
    metrics.watch(lambda: thread.stats)
    if kv_events:
        metrics.watch_kv_events(kv_events)
    metrics.describe_cache(EngineConfig(kv_offloading_bytes=2 * 2**30), 0.9)
    model = ModelInfo(("fake", "alias"), "/models/fake", MAX_MODEL_LEN)
    tokenizer = tokenizer or CharTokenizer()
    draw_seed = partial(next, iter(range(1000, 2000)))
    reading = choose_reading(tokenizer)
    pool = GrammarPool(grammars) if grammars else None
    return Service(model, tokenizer, thread, metrics, {}, draw_seed, grammars=pool, reading=reading)


class InThread(GracefulServer):
    """Signals reach the main thread only."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def served_by(
    engine: EngineLike,
    tokenizer: TokenizerLike | None = None,
    wait_until_ready: bool = True,
    grammars: Grammars | None = None,
    operations: Operations | None = None,
    send_buffer: int | None = None,
    max_connections: int = 1000,
    observers: Sequence[RecordHandler] = (),
    web: HttpOptions | None = None,
    kv_events: KVEventPublisher | None = None,
    **fields: Any,
) -> Iterator[Served]:
    """Runs a server in a thread for the time of the block; send_buffer: bytes the kernel keeps;
    kv_events: publishes what its log gets of the engine; fields: of the service that are other
    than usual."""
    operations = operations or Operations()
    most = operations.max_queued
    service = build_service(engine, tokenizer, grammars, most, kv_events)
    service = replace(service, **fields)
    app = create_app(service, operations, observers, web)
    tls = tls_context(**asdict(web.tls)) if web and web.tls else None
    server = InThread(
        app,
        service.engine,
        service.in_flight,
        drain_timeout_s=5.0,
        client_timeout_s=operations.client_timeout_s,
        max_connections=max_connections,
        tls=tls,
    )
    with bind("127.0.0.1", 0) as address:
        if send_buffer is not None:
            address.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        scheme, verify = "http", TRUSTED
        if web and web.tls:
            scheme, verify = "https", ssl.create_default_context(cafile=web.tls.certfile)
        url = f"{scheme}://127.0.0.1:{address.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([address],))
        thread.start()
        try:
            with (
                httpx.Client(base_url=url, timeout=30, verify=verify) as http,
                openai.OpenAI(
                    base_url=f"{url}/v1",
                    api_key="none",
                    max_retries=0,
                    http_client=openai.DefaultHttpxClient(verify=verify),
                ) as client,
            ):
                while not address.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    assert thread.is_alive(), "the server ended before it listened"
                    time.sleep(0.002)
                while wait_until_ready and http.get("/health").status_code != 200:
                    time.sleep(0.01)
                yield Served(service, http, client)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(engine: FakeEngine, **options: Any) -> Iterator[Served]:
    with served_by(engine, **options) as server:
        yield replace(server, engine=engine)


@asynccontextmanager
async def served_apart(
    engine: FakeEngine, drain_timeout_s: float = 5.0, **fields: Any
) -> AsyncIterator[tuple[GracefulServer, Service, httpx.AsyncClient]]:
    """A server that is ready, without a socket, and a client of it."""
    service = build_service(engine, **fields)
    app = create_app(service)
    server = GracefulServer(app, service.engine, service.in_flight, drain_timeout_s=drain_timeout_s)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://fake") as http,
    ):
        await service.engine.ready.wait()
        yield server, service, http


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


class StuckTokenizer(CharTokenizer):
    """Takes a minute for a text that says so."""

    def encode(self, text: str, add_special: bool = False, most: int | None = None) -> list[int]:
        if text == "stuck":
            time.sleep(60)
        return super().encode(text)


async def serve_until_signal(
    hang_at_step: int | None, drain_timeout_s: float, compiles: bool
) -> int:
    """Prints its port, answers slowly, drains on SIGTERM; returns the exit status."""
    engine = FakeEngine(step_s=0.02, hang_at_step=hang_at_step)
    if compiles:
        engine.warm.clear()
    service = build_service(engine, StuckTokenizer())
    watchdog_timeout_s = 60.0 if hang_at_step is None else 0.4
    app = create_app(service, Operations(watchdog_timeout_s=watchdog_timeout_s))
    server = GracefulServer(
        app,
        service.engine,
        service.in_flight,
        drain_timeout_s=drain_timeout_s,
        max_connections=room_for_connections(),
    )
    with bind("127.0.0.1", 0) as address:
        print(address.getsockname()[1], flush=True)
        await server.serve(sockets=[address])
    return server.exit_status


def main(argv: Sequence[str]) -> NoReturn:
    flags = argparse.ArgumentParser()
    flags.add_argument("--hang-at-step", type=int)
    flags.add_argument("--drain-timeout", type=float, default=5.0)
    flags.add_argument("--compiles", action="store_true", help="and never is ready")
    given = flags.parse_args(argv)
    configure_logging("text")
    raise_limit()
    exit_now(
        run_to_end(serve_until_signal(given.hang_at_step, given.drain_timeout, given.compiles))
    )
