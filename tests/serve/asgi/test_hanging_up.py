"""A client that hangs up, a server that drains, a reader that is slow."""

import asyncio

import httpx
import pytest
from fake_engine import FakeEngine, expected_answer
from fake_server import Served, build_service, wait_for

from eagle3_jax.engine import RequestOutput, Round
from serve.app import create_app
from serve.asgi.listening.graceful import GracefulServer
from serve.engine.errors import EngineDead
from serve.engine.stream import OutputStream

LONG = {"prompt": "abc", "max_tokens": 200}


@pytest.fixture
def slow(serve) -> Served:
    return serve(FakeEngine(step_s=0.02))


def test_hanging_up_on_a_stream_cancels_every_choice(slow: Served) -> None:
    body = LONG | {"stream": True, "n": 3}
    with slow.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        assert len(slow.engine.running) == 3
    wait_for(lambda: len(slow.engine.cancelled) == 3)
    assert not slow.engine.running
    aborted = 'finished_reason="abort"} 3'
    assert aborted in slow.http.get("/metrics").text


def test_hanging_up_on_a_whole_answer_cancels_it(slow: Served) -> None:
    with pytest.raises(httpx.ReadTimeout):
        slow.http.post("/v1/completions", json=LONG, timeout=0.3)
    wait_for(lambda: len(slow.engine.cancelled) == 1)
    assert not slow.engine.running


def test_others_go_on_when_one_hangs_up(slow: Served) -> None:
    body = {"prompt": "abc", "max_tokens": 40, "seed": 1, "stream": True}
    with slow.http.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as other:
        next(other.iter_lines())
    answer = slow.openai.completions.create(model="fake", prompt="abc", max_tokens=40, seed=1)
    assert answer.choices[0].text == expected_answer("abc", 1, 40)
    assert slow.http.post("/v1/completions", json=body).status_code == 200


async def drain(engine: FakeEngine, num_tokens: int, drain_timeout_s: float) -> tuple[str, dict]:
    """Signals a server while it answers; what the client got, and the answer to a late one."""
    service = build_service(engine)
    app = create_app(service)
    server = GracefulServer(app, service.engine, service.arrivals, drain_timeout_s=drain_timeout_s)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://fake") as http,
    ):
        await service.engine.ready.wait()
        body = {"prompt": "abc", "seed": 0, "max_tokens": num_tokens}
        asking = asyncio.create_task(http.post("/v1/completions", json=body))
        while not engine.running:
            await asyncio.sleep(0.005)
        server.on_signal(15)
        await asyncio.sleep(0)
        late = await http.post("/v1/completions", json=body)
        assert late.status_code == 503 and "retry-after" in late.headers
        assert (await http.get("/health")).status_code == 503
        choice = (await asking).json()["choices"][0]
        while not server.should_exit:
            await asyncio.sleep(0.005)
        return choice["text"], choice["finish_reason"]


def test_first_signal_refuses_new_requests_and_finishes_the_old() -> None:
    text, reason = asyncio.run(drain(FakeEngine(step_s=0.01), 20, 5.0))
    assert (text, reason) == (expected_answer("abc", 0, 20), "length")


def test_deadline_aborts_what_is_left() -> None:
    engine = FakeEngine(step_s=0.05)
    text, reason = asyncio.run(drain(engine, 200, 0.2))
    assert reason == "abort"
    assert expected_answer("abc", 0, 200).startswith(text) and len(text) < 200
    wait_for(lambda: not engine.running)


def test_engine_is_idle_again_after_refusing_a_request() -> None:
    async def refuse() -> None:
        service = build_service(FakeEngine())
        app = create_app(service)
        async with app.router.lifespan_context(app):
            await service.engine.ready.wait()
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://fake"
            ) as http:
                assert (await http.post("/v1/completions", json={"prompt": "!"})).status_code == 400
            await asyncio.wait_for(service.engine.idle(), 1)

    asyncio.run(refuse())


def test_slow_reader_gets_everything_in_fewer_pieces() -> None:
    made = Round(3, 3, 3, 1, 2)

    def output(token: int, finish: str | None = None) -> RequestOutput:
        return RequestOutput("r", (token,), chr(token), finish, None, (made,), 3, 0)  # type: ignore[arg-type]

    async def read() -> list[RequestOutput]:
        stream = OutputStream(["r"])
        for token in b"abc":
            stream.push(output(token))
        stream.push(output(ord("d"), "stop"))
        return [piece async for piece in stream]

    (piece,) = asyncio.run(read())
    assert (piece.text, piece.token_ids, piece.accepted) == ("abcd", tuple(b"abcd"), (1, 1, 1, 1))
    assert piece.finish_reason == "stop"


def test_error_comes_after_what_was_put_out_before() -> None:
    async def read() -> list[str]:
        stream = OutputStream(["r"])
        stream.push(RequestOutput("r", (97,), "a", None, None, (), 3, 0))
        stream.fail(EngineDead("gone"))
        texts = []
        with pytest.raises(EngineDead, match="gone"):
            async for piece in stream:
                texts.append(piece.text)
        return texts

    assert asyncio.run(read()) == ["a"]
