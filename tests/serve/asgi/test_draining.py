"""A server that drains waits for every request that has arrived, however far it is."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fake_engine import CharTokenizer, FakeEngine, expected_answer
from fake_server import build_service

from serve.app import create_app
from serve.asgi.listening.graceful import GracefulServer

BODY = {"prompt": "abc", "seed": 0, "max_tokens": 6}
REGEX = {"structured_outputs": {"regex": "a"}}
LONG = {"padding": "x" * 30_000}
"""A body of this length is tokenised in a thread."""


class Held:
    """Work that has begun and ends when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *_: Any) -> None:
        self.begun.set()
        assert self.may_end.wait(10)


def held_body(held: Held) -> dict[str, Any]:
    async def trickle() -> AsyncIterator[bytes]:
        content = json.dumps(BODY).encode()
        yield content[:10]
        await asyncio.to_thread(held)
        yield content[10:]

    return {"content": trickle(), "headers": {"Content-Type": "application/json"}}


@pytest.fixture(params=["body", "tokenising", "grammar"])
def stage(request: pytest.FixtureRequest) -> tuple[Held, dict[str, Any], Callable[[Held], dict]]:
    """Work that is held at that stage of a request, the service's fields, and the request."""
    held = Held()

    class HeldTokenizer(CharTokenizer):
        def encode(
            self, text: str, add_special: bool = False, most: int | None = None
        ) -> list[int]:
            if text == BODY["prompt"]:
                held()
            return super().encode(text)

    class HeldGrammars:
        def known(self, form: Any) -> None:
            return None

        def compile(self, form: Any) -> None:
            held()

    fields: dict[str, dict[str, Any]] = {
        "body": {},
        "tokenising": {"tokenizer": HeldTokenizer()},
        "grammar": {"grammars": HeldGrammars()},
    }
    asked: dict[str, Callable[[Held], dict]] = {
        "body": held_body,
        "tokenising": lambda _: {"json": BODY | LONG},
        "grammar": lambda _: {"json": BODY | REGEX},
    }
    return held, fields[request.param], asked[request.param]


async def drained(
    held: Held, fields: dict[str, Any], asked: dict[str, Any], *, drain_timeout_s: float, ends: bool
) -> tuple[httpx.Response, GracefulServer]:
    """The answer to a request that was held up when the server began to drain, and the server;
    ends: whether it gets on before the time is over."""
    service = build_service(FakeEngine(), **fields)
    app = create_app(service)
    server = GracefulServer(app, service.engine, service.arrivals, drain_timeout_s=drain_timeout_s)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fake") as http,
    ):
        await service.engine.ready.wait()
        asking = asyncio.create_task(http.post("/v1/completions", **asked))
        while not held.begun.is_set():
            assert not asking.done(), asking.result().text
            await asyncio.sleep(0.005)
        server.drain()
        await asyncio.sleep(0.05)
        late = await http.post("/v1/completions", json=BODY)
        assert (late.status_code, late.headers["retry-after"]) == (503, "10")
        assert not server.should_exit
        if ends:
            held.may_end.set()
        answer = await asyncio.wait_for(asking, 5)
        while not server.should_exit:
            await asyncio.sleep(0.005)
    held.may_end.set()
    return answer, server


def test_a_request_that_the_engine_has_not_seen_is_waited_for_and_answered(stage) -> None:
    held, fields, asked = stage
    work = drained(held, fields, asked(held), drain_timeout_s=5, ends=True)
    answer, _ = asyncio.run(work)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == expected_answer("abc", 0, 6)


def test_what_is_not_ready_in_time_is_told_so_and_not_waited_for(
    stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.asgi.listening.graceful.ABORT_S", 0.05)
    held, fields, asked = stage
    work = drained(held, fields, asked(held), drain_timeout_s=0.2, ends=False)
    answer, _ = asyncio.run(work)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "the server is shutting down"
