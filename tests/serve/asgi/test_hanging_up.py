"""A client that hangs up, and a reader that is slow."""

import asyncio
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, expected_answer
from fake_server import Served, wait_for

from eagle3_jax.engine import RequestOutput, Round
from serve.engine.errors import EngineDead
from serve.engine.stream import OutputStream

COMPLETIONS = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "abc", "max_tokens": 200}
HELLO = [{"role": "user", "content": "hello"}]
STREAMS: dict[str, tuple[dict[str, Any], int]] = {
    COMPLETIONS: (LONG | {"n": 3}, 3),
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
        slow.http.post(COMPLETIONS, json=LONG, timeout=0.3)
    wait_for(lambda: len(slow.engine.cancelled) == 1)
    assert not slow.engine.running


def test_others_go_on_when_one_hangs_up(slow: Served) -> None:
    with slow.http.stream("POST", COMPLETIONS, json=LONG | {"stream": True}) as other:
        next(other.iter_lines())
    answer = slow.ask(COMPLETIONS, prompt="abc", max_tokens=40, seed=1)
    assert answer["choices"][0]["text"] == expected_answer("abc", 1, 40)


def output(text: str, finish: Any = None) -> RequestOutput:
    made = Round(3, 3, 3, 1, 2)
    return RequestOutput("r", tuple(text.encode()), text, finish, None, (made,), 3, 0)


def test_slow_reader_gets_everything_in_fewer_pieces() -> None:
    async def read() -> list[RequestOutput]:
        stream = OutputStream(["r"])
        for piece in (output("a"), output("b"), output("c"), output("d", "stop")):
            stream.push(piece)
        return [piece async for piece in stream]

    (piece,) = asyncio.run(read())
    assert (piece.text, piece.token_ids, piece.accepted) == ("abcd", tuple(b"abcd"), (1, 1, 1, 1))
    assert piece.finish_reason == "stop"


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
