"""POST /v1/messages with Anthropic's client as the judge: answers, blocks, events and errors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from called_tools import ANSWERS, KIMI_CALLS, PARAMETERS, prompt_of
from chat_tokenizers import kimi
from fake_engine import MAX_MODEL_LEN, FakeEngine, expected_answer
from fake_server import Serve, Served
from probe import wait_for
from pydantic import TypeAdapter

from serve.anthropic.answer import PING, with_pings
from serve.anthropic.content import read_input
from serve.asgi.errors import ANTHROPIC_PATH
from serve.options.operations import Operations

HELLO: Any = [{"role": "user", "content": "hello"}]
ASKED: dict[str, Any] = {"model": "fake", "messages": HELLO, "max_tokens": 7}
SEED = {"seed": 3}


def text_of(message: Message) -> str:
    """The text of an answer that is nothing else."""
    (block,) = message.content
    assert block.type == "text"
    return block.text


def test_the_answer_is_the_engines(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASKED, extra_body=SEED)
    assert (message.type, message.role, message.model) == ("message", "assistant", "fake")
    assert message.id.startswith("msg_") and message._request_id
    assert text_of(message) == expected_answer("hello", 3, 7)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 7)


def test_content_and_system_are_strings_or_blocks_joined_as_they_are(
    client: anthropic.Anthropic,
) -> None:
    cached = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    parts = [{"type": "text", "text": part} for part in ("hel", "lo")]
    given: Any = (("hello", parts), (parts, [cached]), ("hello", "hello"))
    for system, content in given:
        message = client.messages.create(
            model="fake",
            system=system,
            messages=[{"role": "user", "content": content}],
            max_tokens=4,
            extra_body=SEED,
        )
        assert text_of(message) == expected_answer("hello\nhello", 3, 4)


def test_claude_codes_billing_is_not_told_to_the_model(client: anthropic.Anthropic) -> None:
    billing: Any = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f3;"}
    for system in ([billing], [billing, {"type": "text", "text": "hi"}]):
        counted = client.messages.count_tokens(model="fake", messages=HELLO, system=system)
        assert counted.input_tokens == len("hello" if len(system) == 1 else "hi\nhello")


def test_tokens_are_counted_as_they_are_run(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "fake", "messages": HELLO, "system": "be kind"}
    counted = client.messages.count_tokens(**asked)
    assert counted.input_tokens == len("be kind\nhello")
    message = client.messages.create(**asked, max_tokens=1)
    assert message.usage.input_tokens == counted.input_tokens
    long: Any = [{"role": "user", "content": "a" * (MAX_MODEL_LEN + 9)}]
    assert client.messages.count_tokens(model="fake", messages=long).input_tokens > MAX_MODEL_LEN


def test_a_stop_sequence_is_told_and_left_out(client: anthropic.Anthropic) -> None:
    whole = expected_answer("hello", 3, 7)
    message = client.messages.create(**ASKED, stop_sequences=["#", whole[3]], extra_body=SEED)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", whole[3])
    assert text_of(message) == whole[:3]


def test_an_answer_ends_at_its_limit_or_where_the_context_does(client: anthropic.Anthropic) -> None:
    cut = client.messages.create(**ASKED)
    assert (cut.stop_reason, cut.stop_sequence, cut.usage.output_tokens) == ("max_tokens", None, 7)
    full = client.messages.create(**{**ASKED, "max_tokens": 1000})
    assert full.stop_reason == "model_context_window_exceeded"
    assert full.usage.output_tokens == MAX_MODEL_LEN - len("hello")


def test_no_tokens_are_a_prompt_for_the_cache(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**ASKED, "max_tokens": 0})
    assert (message.content, message.stop_reason) == ([], "max_tokens")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 0)


def test_cached_tokens_are_told_apart(
    serve: Serve, connect: Callable[..., anthropic.Anthropic]
) -> None:
    client = connect(serve(FakeEngine(cached_tokens=4)))
    with client.messages.stream(**ASKED) as stream:
        first = next(event for event in stream if event.type == "message_start").message
        streamed = stream.get_final_message()
    for message in (first, streamed, client.messages.create(**ASKED)):
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (1, 4)
        assert usage.cache_creation_input_tokens == 0


Connect = Callable[..., anthropic.Anthropic]
TOOLS: Any = [
    {"name": "weather", "description": "Weather in a city", "input_schema": PARAMETERS},
    {"name": "time", "input_schema": {"type": "object"}},
]
USER: Any = {"role": "user", "content": "How is Oslo?"}
OSLO: dict[str, Any] = {"model": "fake", "messages": [USER], "max_tokens": 200}
ON: Any = {"type": "adaptive"}


@pytest.mark.parametrize("chat_format", ANSWERS)
def test_whole_and_streamed_answers_have_the_same_blocks(
    say: Serve, connect: Connect, chat_format: str
) -> None:
    client = connect(say(ANSWERS[chat_format], chat_format=chat_format))
    asked = {**OSLO, "tools": TOOLS, "thinking": ON}
    whole = client.messages.create(**asked)
    assert whole.stop_reason == "tool_use"
    thinking, text, *calls = whole.content
    assert thinking.type == "thinking" and thinking.thinking == "I look it up."
    assert thinking.signature
    assert text.type == "text" and text.text == "One moment."
    assert [(call.name, call.input) for call in calls if call.type == "tool_use"] == [
        ("weather", {"city": "Oslo", "days": 2}),
        ("time", {}),
    ]
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert streamed.stop_reason == "tool_use" and streamed.usage == whole.usage
    drawn = {"id"} if chat_format == "minimax_m2" else set()  # Its calls have no names.
    for one, other in zip(streamed.content, whole.content, strict=True):
        assert one.to_dict().keys() == other.to_dict().keys()
        assert one.model_dump(exclude={*drawn, "parsed_output"}) == other.model_dump(exclude=drawn)


def test_thinking_that_is_not_shown_comes_back_in_its_signature(
    say: Serve, connect: Connect
) -> None:
    server = say("Let me see: \u00fc.</think>Fine.")
    client = connect(server)
    asked: dict[str, Any] = {**OSLO, "tools": TOOLS, "thinking": {**ON, "display": "omitted"}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [e.delta.type for e in stream if e.type == "content_block_delta"]
        assert "thinking_delta" not in kinds and kinds.count("signature_delta") == 1
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        block = message.content[0]
        assert block.type == "thinking" and not block.thinking
        turns = [USER, {"role": "assistant", "content": message.content}, USER]
        call = {"type": "tool_use", "id": "functions.time:0", "name": "time", "input": {}}
        turns[1]["content"] = [block, call]
        client.messages.create(**{**asked, "messages": turns})
        assert "<think>Let me see: \u00fc.</think><|tool_calls_section_begin|>" in prompt_of(server)


def test_an_answer_that_is_cut_keeps_what_there_is(say: Serve, connect: Connect) -> None:
    client = connect(say(f"</think>{KIMI_CALLS}"))
    lengths: set[int] = set()
    for size in range(8, 30):
        asked = {**OSLO, "max_tokens": size, "tools": TOOLS, "thinking": ON}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        assert whole.stop_reason == streamed.stop_reason
        calls = [block.model_dump() for block in whole.content]
        assert [b.model_dump(exclude={"parsed_output"}) for b in streamed.content] == calls
        lengths.add(len(calls[0].get("input", ())))
    assert lengths >= {0, 1, 2}


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    bad = ['{" "Oslo"}', "[1]", '{"a": 1} x', '{"a": NaN}', '{"a": 1', "[" * 10_000, "no"]
    for arguments in bad:
        assert read_input(arguments, cut=False) == {"INVALID_JSON": arguments}


def test_one_call_at_a_time_or_none_if_the_client_says_so(say: Serve, connect: Connect) -> None:
    client = connect(say(f"Hm.</think>{KIMI_CALLS}"))
    choices: list[tuple[Any, str, list[str]]] = [
        ({"type": "auto", "disable_parallel_tool_use": True}, "tool_use", ["thinking", "tool_use"]),
        ({"type": "none"}, "end_turn", ["thinking", "text"]),
    ]
    for choice, reason, kinds in choices:
        message = client.messages.create(**OSLO, tools=TOOLS, thinking=ON, tool_choice=choice)
        assert message.stop_reason == reason
        assert [block.type for block in message.content] == kinds


def test_thinking_that_a_checkpoint_has_not_is_refused(client: anthropic.Anthropic) -> None:
    given: Any = ({"thinking": ON}, {"output_config": {"effort": "low"}})
    for asked in given:
        with pytest.raises(anthropic.BadRequestError, match="no way to think"):
            client.messages.create(**OSLO, **asked)


EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.time:0"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
)
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99}
BODY |= {"thinking": {"type": "adaptive"}, "tools": [{"name": "time", "input_schema": {}}]}


def events_of(server: Served, **body: Any) -> list[dict[str, Any]]:
    """The events on the wire; pings are in no type of the SDK."""
    found = server.named_events(ANTHROPIC_PATH, **body)
    for event in found:
        if event["type"] not in ("ping", "error"):
            assert EVENTS.validate_python(event).type == event["type"]
    return found


def test_events_come_in_the_protocols_order(say: Serve) -> None:
    said = f"Hm.</think>Well.{CALL}"
    server = say(said)
    events = events_of(server, **BODY)
    kinds = [
        event.get("content_block", event.get("delta", event))["type"]
        if event["type"] in ("content_block_start", "content_block_delta")
        else event["type"]
        for event in events
    ]
    block = "content_block_stop"
    assert [kind for kind, _ in groupby(kinds)] == [
        *("message_start", "ping"),
        *("thinking", "thinking_delta", "signature_delta", block),
        *("text", "text_delta", block),
        *("tool_use", "input_json_delta", block),
        *("message_delta", "message_stop"),
    ]
    assert [event["index"] for event in events if event["type"] == block] == [0, 1, 2]
    assert events[0]["message"]["content"] == [] and not events[0]["message"]["stop_reason"]
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


KEYS = ("first-key", "second-key")


def check_form(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body = answer.json()
    told = ErrorResponse.model_validate(body)
    assert set(body) == {"type", "error", "request_id"} and told.type == "error"
    assert set(body["error"]) == {"type", "message"} and body["error"]["type"] == kind
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    return body


@pytest.fixture
def small(serve: Serve) -> Served:
    limits = Operations(api_keys=KEYS, max_body_bytes=1000, max_queued=1)
    return serve(FakeEngine(step_s=0.01), operations=limits)


def test_a_key_comes_in_either_header(small: Served, connect: Connect) -> None:
    for key in KEYS:
        assert connect(small, api_key=key).messages.create(**ASKED).content
        bearer = connect(small, api_key=None, auth_token=key)
        assert bearer.messages.create(**ASKED).content
    both = {"Authorization": "Bearer wrong", "x-api-key": KEYS[0]}
    assert small.http.post(ANTHROPIC_PATH, json=ASKED, headers=both).status_code == 200
    for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}, {"x-api-key": f"a {KEYS[0]}"}):
        answer = small.http.post(ANTHROPIC_PATH, json=ASKED, headers=headers)
        check_form(answer, 401, "authentication_error")
    with pytest.raises(anthropic.AuthenticationError, match="x-api-key: KEY"):
        connect(small, api_key="wrong").messages.create(**ASKED)


def test_what_is_not_there_is_404_or_405(fake: Served, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="gpt-9") as caught:
        client.messages.create(**{**ASKED, "model": "gpt-9"})
    assert caught.value.type == "not_found_error"
    assert caught.value.request_id == caught.value.body["request_id"]  # type: ignore[index]
    check_form(fake.http.get(f"{ANTHROPIC_PATH}/batches"), 404, "not_found_error")
    check_form(fake.http.get(ANTHROPIC_PATH), 405, "invalid_request_error")


NO_BODIES = [b"{", b"", b"[]", b"[" * 100_000, b'{"max_tokens": NaN}', rb'{"\ud800": 1}']


@pytest.mark.parametrize("body", NO_BODIES)
def test_a_body_that_is_none_is_400(fake: Served, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for path in (ANTHROPIC_PATH, f"{ANTHROPIC_PATH}/count_tokens"):
        answer = fake.http.post(path, content=body, headers=headers)
        check_form(answer, 400, "invalid_request_error")


def test_a_body_that_is_too_large_is_413(small: Served, connect: Connect) -> None:
    long = {**ASKED, "messages": [{"role": "user", "content": "a" * 1000}]}
    with pytest.raises(anthropic.APIStatusError) as caught:
        connect(small, api_key=KEYS[0]).messages.create(**long)
    assert (caught.value.status_code, caught.value.type) == (413, "request_too_large")


def test_a_full_queue_is_overloaded(small: Served, connect: Connect) -> None:
    client = connect(small, api_key=KEYS[0])
    with client.messages.stream(**{**ASKED, "max_tokens": 200}) as stream:
        next(iter(stream))
        with pytest.raises(anthropic.InternalServerError) as caught:
            client.messages.create(**ASKED)
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
    assert "Retry-After" in caught.value.response.headers


def check_error(events: list[dict[str, Any]]) -> str:
    assert ErrorResponse.model_validate(events[-1]) and events[-1]["error"]["type"] == "api_error"
    return events[-1]["error"]["message"]


def test_a_dead_engine_is_an_error_of_the_api(serve: Serve) -> None:
    server = serve(FakeEngine(fail_at_step=3))
    long = {**ASKED, "max_tokens": 200}
    assert "device is gone" in check_error(events_of(server, **long))
    check_form(server.http.post(ANTHROPIC_PATH, json=long), 503, "api_error")


def test_an_answer_that_is_given_up_is_an_error(serve: Serve) -> None:
    server = serve(FakeEngine(step_s=0.01))
    long = {**ASKED, "max_tokens": 200}
    with ThreadPoolExecutor() as pool:
        whole = pool.submit(server.http.post, ANTHROPIC_PATH, json=long)
        streamed = pool.submit(events_of, server, **long)
        wait_for(lambda: len(server.engine.running) == 2)
        server.http.post("/abort_request", json={"abort_all": True})
    check_form(whole.result(), 503, "api_error")
    assert check_error(streamed.result()) == "the server is shutting down"
