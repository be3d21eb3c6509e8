"""A server that drains, a client that hangs up, a reader that is slow."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, Held, HeldTokenizer, expected_answer
from fake_server import HELLO, Served, served_apart, until
from probe import wait_for

from eagle3_jax.engine import RequestOutput, Round
from serve.engine.errors import EngineDead
from serve.engine.stream import OutputStream

BODY = {"prompt": "abc", "seed": 0, "max_tokens": 6}
REGEX = {"structured_outputs": {"regex": "a"}}
LONG = {"padding": "x" * 30_000}
"""A body of this length is tokenised in a thread."""


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

    class HeldGrammars:
        def known(self, form: Any) -> None:
            return None

        def compile(self, form: Any) -> None:
            held()

    fields: dict[str, dict[str, Any]] = {
        "body": {},
        "tokenising": {"tokenizer": HeldTokenizer(held, BODY["prompt"])},
        "grammar": {"grammars": HeldGrammars()},
    }
    asked: dict[str, Callable[[Held], dict]] = {
        "body": held_body,
        "tokenising": lambda _: {"json": BODY | LONG},
        "grammar": lambda _: {"json": BODY | REGEX},
    }
    return held, fields[request.param], asked[request.param]


async def drained(
    held: Held, fields: dict[str, Any], asked: dict[str, Any], drain_timeout_s: float, ends: bool
) -> httpx.Response:
    """The answer to a request that was held up when the server began to drain; ends: whether it
    gets on before the time is over."""
    async with served_apart(FakeEngine(), drain_timeout_s, **fields) as (server, _, http):
        asking = asyncio.create_task(http.post("/v1/completions", **asked))
        await until(lambda: held.begun.is_set() or asking.done())
        assert not asking.done(), asking.result().text
        server.drain()
        await asyncio.sleep(0.05)
        late = await http.post("/v1/completions", json=BODY)
        assert (late.status_code, late.headers["retry-after"]) == (503, "10")
        assert not server.should_exit
        if ends:
            held.may_end.set()
        answer = await asyncio.wait_for(asking, 5)
        await until(lambda: server.should_exit)
    held.may_end.set()
    return answer


def test_a_request_that_the_engine_has_not_seen_is_waited_for_and_answered(stage) -> None:
    held, fields, asked = stage
    answer = asyncio.run(drained(held, fields, asked(held), drain_timeout_s=5, ends=True))
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == expected_answer("abc", 0, 6)


def test_what_is_not_ready_in_time_is_told_so_and_not_waited_for(
    stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.asgi.graceful.ABORT_S", 0.05)
    held, fields, asked = stage
    answer = asyncio.run(drained(held, fields, asked(held), drain_timeout_s=0.2, ends=False))
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "the server is shutting down"


def test_deadline_aborts_what_the_engine_has_not_ended() -> None:
    engine = FakeEngine(step_s=0.05)

    async def drain() -> dict[str, Any]:
        async with served_apart(engine, 0.2) as (server, _, http):
            body = BODY | {"max_tokens": 200}
            asking = asyncio.create_task(http.post("/v1/completions", json=body))
            await until(lambda: engine.running)
            server.on_signal(15)
            await asyncio.sleep(0)
            assert (await http.get("/health")).status_code == 503
            choice = (await asking).json()["choices"][0]
            await until(lambda: server.should_exit)
            return choice

    choice = asyncio.run(drain())
    assert choice["finish_reason"] == "abort" and len(choice["text"]) < 200
    assert expected_answer("abc", 0, 200).startswith(choice["text"])
    wait_for(lambda: not engine.running)


def test_engine_is_idle_again_after_refusing_a_request() -> None:
    async def refuse() -> None:
        async with served_apart(FakeEngine(), 5.0) as (_, service, http):
            assert (await http.post("/v1/completions", json={"prompt": "!"})).status_code == 400
            await asyncio.wait_for(service.engine.idle(), 1)

    asyncio.run(refuse())


COMPLETIONS = "/v1/completions"
ENDLESS: dict[str, Any] = {"prompt": "abc", "max_tokens": 200}
STREAMS: dict[str, tuple[dict[str, Any], int]] = {
    COMPLETIONS: (ENDLESS | {"n": 3}, 3),
    "/v1/messages": ({"messages": HELLO, "max_tokens": 200}, 1),
    "/v1/responses": ({"input": "hello"}, 1),
}
"""Long answers, and their number of choices."""


@pytest.fixture
def slow(serve) -> Served:
    return serve(FakeEngine(step_s=0.02))


@pytest.mark.parametrize("path", STREAMS)
def test_hanging_up_on_a_stream_cancels_every_choice(slow: Served, path: str) -> None:
    body, choices = STREAMS[path]
    with slow.http.stream("POST", path, json=body | {"stream": True}) as answer:
        lines = answer.iter_lines()
        told = next(lines) + next(lines)
        assert len(slow.engine.running) == choices
    wait_for(lambda: len(slow.engine.cancelled) == choices)
    assert not slow.engine.running
    assert f'finished_reason="abort"}} {choices}' in slow.http.get("/metrics").text
    if path == "/v1/responses":
        name = told.partition('"id":"')[2].partition('"')[0]
        assert name and slow.http.get(f"{path}/{name}").status_code == 404, "it is stored"


def test_hanging_up_on_a_whole_answer_cancels_it(slow: Served) -> None:
    with pytest.raises(httpx.ReadTimeout):
        slow.http.post(COMPLETIONS, json=ENDLESS, timeout=0.3)
    wait_for(lambda: len(slow.engine.cancelled) == 1)
    assert not slow.engine.running


def test_others_go_on_when_one_hangs_up(slow: Served) -> None:
    with slow.http.stream("POST", COMPLETIONS, json=ENDLESS | {"stream": True}) as other:
        next(other.iter_lines())
    answer = slow.ask(COMPLETIONS, prompt="abc", max_tokens=40, seed=1)
    assert answer["choices"][0]["text"] == expected_answer("abc", 1, 40)


def output(text: str, finish: Any = None) -> RequestOutput:
    made = Round(3, 3, 3, 1, 2)
    return RequestOutput("r", tuple(text.encode()), text, finish, None, (made,), 3, 0)


def test_error_comes_after_what_was_put_out_before() -> None:
    async def read() -> list[str]:
        stream, texts = OutputStream(["r"]), []
        stream.push(output("a"))
        stream.fail(EngineDead("gone"))
        with pytest.raises(EngineDead, match="gone"):
            async for piece in stream:
                texts.append(piece.text)
        return texts

    assert asyncio.run(read()) == ["a"]
