"""The events of a message: their order, pings, and what an answer that is given up says."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from chat_tokenizers import kimi, reading_of
from fake_server import Served
from pydantic import TypeAdapter

from eagle3_jax.engine import Request, RequestOutput
from eagle3_jax.sampling.params import SamplingParams
from serve.anthropic.answer import PING, MessageAnswer, with_pings
from serve.anthropic.choices import ReadChoices
from serve.anthropic.content import Content
from serve.chat_format.parser import AnswerParser
from serve.engine.errors import ShuttingDown
from serve.engine.stream import OutputStream

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.time:0"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
)
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99, "stream": True}
BODY |= {"thinking": {"type": "adaptive"}, "tools": [{"name": "time", "input_schema": {}}]}


def events_of(text: str) -> list[dict[str, Any]]:
    """The events on the wire, each named as it says itself; pings are in no type of the SDK."""
    found = []
    for block in text.rstrip("\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
        if event["type"] not in ("ping", "error"):
            assert EVENTS.validate_python(event).type == event["type"]
    return found


def test_events_come_in_the_protocols_order(say: Callable[..., Served]) -> None:
    said = f"Hm.</think>Well.{CALL}"
    server = say(said)
    events = events_of(server.http.post("/v1/messages", json=BODY).text)
    names = [event["type"] for event in events]
    assert names[:2] == ["message_start", "ping"] and names.count("ping") == 1
    assert names[-2:] == ["message_delta", "message_stop"]
    assert events[0]["message"]["content"] == [] and not events[0]["message"]["stop_reason"]
    kinds, open_block = [], None
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None and event["index"] == len(kinds)
            open_block = event["index"]
            kinds.append([event["content_block"]["type"]])
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
            kinds[-1] += [event["delta"]["type"]] * (event["delta"]["type"] != kinds[-1][-1])
        else:
            assert event == {"type": "content_block_stop", "index": open_block}
            open_block = None
    assert open_block is None
    assert kinds == [
        ["thinking", "thinking_delta", "signature_delta"],
        ["text", "text_delta"],
        ["tool_use", "input_json_delta"],
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    # It begins with the first output, which has every token where steps outran their reader.
    begun, whole = events[0]["message"]["usage"], events[-2]["usage"]
    tokens = len(kimi().encode(said, add_special=True)) + 1  # and the one that ends them
    assert 0 < begun["output_tokens"] <= whole["output_tokens"] == tokens


async def slow_events() -> AsyncIterator[list[dict[str, Any]]]:
    yield [{"type": "a"}]
    await asyncio.sleep(0.25)
    yield [{"type": "b"}, {"type": "c"}]


def test_pings_come_while_nothing_else_does() -> None:
    async def read(every_s: float) -> list[str]:
        return [e["type"] async for es in with_pings(slow_events(), every_s) for e in es]

    assert asyncio.run(read(10)) == ["a", "b", "c"]
    first, *pings, second, third = asyncio.run(read(0.1))
    assert (first, second, third) == ("a", "b", "c")
    assert pings and set(pings) == {PING["type"]}


def test_who_stops_reading_pings_stops_what_they_wait_for() -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[list[dict[str, Any]]]:
        try:
            await asyncio.sleep(60)
            yield []
        finally:
            ended.set()

    async def read_one() -> None:
        reader = with_pings(endless(), 0.01)
        assert await anext(reader) == [PING]
        await reader.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(read_one())


def given_up() -> tuple[MessageAnswer, OutputStream]:
    """An answer of one word, which a server that ends gave up."""
    tokens = tuple(kimi().encode("Well"))
    request = Request("run-0", [1, 2], SamplingParams(max_tokens=9))
    parser = AnswerParser(kimi(), reading_of(kimi()), inside_reasoning=False, schemas=None)
    choices = ReadChoices(request, parser, Content(shows_thinking=True), prompt_only=False)
    stream = OutputStream(["run-0"])
    stream.push(RequestOutput("run-0", tokens, "Well", "abort", None, (), 2, 0))
    return MessageAnswer(choices, limit=9, model="m", request_id="r", synthetic={}), stream


def test_an_answer_that_is_given_up_is_an_error() -> None:
    async def whole() -> str:
        answer, stream = given_up()
        await answer.choices.collect(stream)
        return "".join(await answer.whole())

    async def streamed() -> str:
        answer, stream = given_up()
        return "".join(["".join(texts) async for texts in answer.events(stream)])

    with pytest.raises(ShuttingDown):
        asyncio.run(whole())
    (*_, last) = events_of(asyncio.run(streamed()))
    assert last["type"] == "error" and last["error"]["type"] == "api_error"
    assert last["request_id"] == "r"
