"""The events of a streamed response, held against the types of OpenAI's own client."""

import itertools
from typing import Any

import pytest
from called_tools import ANSWERS, THINKING
from called_tools import RESPONSE_TOOLS as TOOLS
from fake_engine import FakeEngine
from fake_server import Served
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ASKED = {"input": "How is Oslo?", "tools": TOOLS, **THINKING}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
TEXTS = {
    "calls": ANSWERS["kimi_k2"],
    "reasoning that was cut": "I look",
    "nothing": "</think>",
    "text alone": "</think>So it is.",
    "calls alone": "</think>" + ANSWERS["kimi_k2"].partition("moment.")[2],
    "no call": "</think>So: <|tool_calls_section_begin|>what?<|tool_calls_section_end|>",
    "text between calls": ANSWERS["kimi_k2"].replace(
        "<|tool_call_end|>", "<|tool_call_end|>then ", 1
    ),
    "a call that was cut": ANSWERS["kimi_k2"].partition(", ")[0],
}


def events(server: Served, **given: Any) -> list[dict[str, Any]]:
    found = server.named_events("/v1/responses", **ASKED | given)
    for event in found:
        EVENTS.validate_python(event)
    return found


def check_items(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items, put together as a client does: an item is added, grows and is done before the
    next one begins, and what it was said to be at its end is what it grew to."""
    items: list[dict[str, Any]] = []
    grown = ""
    for event in found:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
            grown = ""
        elif kind.endswith(".delta"):
            assert event["output_index"] == len(items)
            grown += event["delta"]
        elif kind.endswith("text.done") or kind.endswith("arguments.done"):
            assert event.get("text", event.get("arguments")) == grown
        elif kind == "response.content_part.done":
            assert event["part"]["text"] == grown
        elif kind == "response.output_item.done":
            assert event["output_index"] == len(items)
            items.append(event["item"])
    return items


@pytest.mark.parametrize("name", TEXTS)
def test_events_tell_of_each_item_from_its_beginning_to_its_end(say, name: str) -> None:
    server = say(TEXTS[name])
    found = events(server, **LOGPROBS)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [e["type"] for e in found[:2]] == ["response.created", "response.in_progress"]
    assert found[-1]["type"] == "response.completed"
    last = found[-1]["response"]
    assert check_items(found) == last["output"]
    whole = server.ask("/v1/responses", **ASKED | LOGPROBS)
    same = ("status", "usage", "error", "incomplete_details", "text", "tools")
    assert {n: whole[n] for n in same} == {n: last[n] for n in same}
    assert without_ids(whole["output"]) == without_ids(last["output"])


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def test_the_kinds_of_events_in_their_order(say) -> None:
    found = events(say(ANSWERS["kimi_k2"]))
    kinds = [kind for kind, _ in itertools.groupby(e["type"] for e in found)]
    part = ["response.output_item.added", "response.content_part.added"]
    done = ["response.content_part.done", "response.output_item.done"]
    call = ["response.output_item.added", "response.function_call_arguments.delta"]
    call += ["response.function_call_arguments.done", "response.output_item.done"]
    assert kinds == [
        *("response.created", "response.in_progress"),
        *(*part, "response.reasoning_text.delta", "response.reasoning_text.done", *done),
        *(*part, "response.output_text.delta", "response.output_text.done", *done),
        *call,
        *call,
        "response.completed",
    ]


def test_a_stream_that_was_cut_ends_as_incomplete(say) -> None:
    found = events(say(ANSWERS["kimi_k2"]), max_output_tokens=3)
    assert found[-1]["type"] == "response.incomplete"
    response = found[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


def test_an_error_after_the_beginning_is_the_last_event(serve) -> None:
    server = serve(FakeEngine(fail_at_step=3))
    with server.openai.responses.create(model="fake", input="hello", stream=True) as stream:
        found = list(stream)
    assert found[-1].type == "response.failed"
    error = found[-1].response.error
    assert error.code == "server_error" and "the device is gone" in error.message
    assert found[-1].sequence_number == len(found) - 1
