"""A server whose engine hangs in a device answers everybody when it gives up."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock, call

import httpx
import pytest
from fake_engine import FakeEngine
from fake_server import build_service
from fastapi import FastAPI

from serve.app import create_app
from serve.asgi.graceful import GracefulServer

BODY = {"prompt": "abc", "max_tokens": 40}


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the running application, without a socket."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://fake") as http,
    ):
        yield http


async def give_up_while_hanging() -> tuple[list[httpx.Response], int]:
    """A stream and a whole answer in flight, a request that the engine never saw, and the server's
    exit status."""
    engine = FakeEngine()
    service = build_service(engine)
    app = create_app(service)
    server = GracefulServer(app, service.engine, service.in_flight, drain_timeout_s=5.0)
    async with client_of(app) as http:
        await service.engine.ready.wait()
        engine.go.clear()
        bodies = [BODY | {"stream": True}, BODY]
        asking = [asyncio.create_task(http.post("/v1/completions", json=b)) for b in bodies]
        while len(engine.running) < 2:
            await asyncio.sleep(0.005)
            engine.go.set()
            engine.go.clear()
        await asyncio.sleep(0.05)
        asking.append(asyncio.create_task(http.post("/v1/completions", json=BODY)))
        await asyncio.sleep(0.05)
        server.give_up("lost process 1")
        answers = await asyncio.wait_for(asyncio.gather(*asking), 2)
        answers.append(await http.get("/health"))
        engine.go.set()
        return answers, server.exit_status


def test_streams_whole_answers_and_requests_that_wait_all_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the process ends by itself after eight seconds."""
    timer = Mock()
    monkeypatch.setattr("serve.asgi.graceful.threading.Timer", timer)
    (stream, whole, waiting, health), status = asyncio.run(give_up_while_hanging())
    assert stream.text.endswith("data: [DONE]\n\n") and "lost process 1" in stream.text
    for answer in (whole, waiting):
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "the engine failed: lost process 1"
    assert health.status_code == 503 and status == 1
    assert timer.mock_calls == [call(8.0, os._exit, (1,)), call().start()]


async def interrupt_and_resume() -> tuple[list[httpx.Response], list[str]]:
    """An answer under way, one while there is no engine, and one of the next engine; what the
    thread called failures."""
    first, second = FakeEngine(), FakeEngine()
    service = build_service(first)
    app, failures = create_app(service), list[str]()
    service.engine.on_failure = failures.append
    async with client_of(app) as http:
        await service.engine.ready.wait()
        first.go.clear()
        under_way = asyncio.create_task(http.post("/v1/completions", json=BODY))
        while not first.running:
            await asyncio.sleep(0.005)
        service.engine.interrupt("lost process 0")
        answers = [await under_way, await http.post("/v1/completions", json=BODY)]
        second.warm.clear()
        service.engine.resume(second, lambda error: error)
        first.fail_at_step = first.num_steps + 1
        first.go.set()  # The old engine fails late, and nobody hears of it.
        await asyncio.sleep(0.1)
        answers.append(await http.get("/health"))
        second.warm.set()
        await service.engine.ready.wait()
        answers.append(await http.post("/v1/completions", json=BODY))
        second.fail_at_step = second.num_steps + 1
        asking = asyncio.create_task(http.post("/v1/completions", json=BODY))
        while not failures:
            await asyncio.sleep(0.005)
        service.engine.fail("at the end")
        await asking
    return answers, failures


def test_between_two_engines_requests_are_told_to_come_again() -> None:
    (under_way, late, health, after), failures = asyncio.run(interrupt_and_resume())
    assert under_way.status_code == 503
    assert under_way.json()["error"]["message"] == "the engine failed: lost process 0"
    assert late.status_code == health.status_code == 503
    assert "is being started again" in late.json()["error"]["message"]
    assert late.headers["Retry-After"] == "5"
    assert after.status_code == 200 and after.json()["usage"]["completion_tokens"] == 40
    assert len(failures) == 1, "only the second engine's"
