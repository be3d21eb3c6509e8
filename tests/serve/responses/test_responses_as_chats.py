"""Items that only responses have reach the model in the form of a chat, or are left out."""

from typing import Any, get_args

import pytest
from called_tools import RESPONSE_TOOLS
from fake_server import HELLO, Served

from serve.responses.tools import Absent
from serve.telemetry.logs import warn_once

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"


def test_reasoning_effort_does_what_it_does_in_a_chat(say) -> None:
    server: Served = say("hello")
    body, chat = {"input": "hello"}, {"messages": HELLO}
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        server.ask(RESPONSES, **body, reasoning={"effort": effort})
        server.ask(CHAT, **chat, reasoning_effort=effort)
        first, second = server.engine.asked[-2:]
        assert first.prompt_ids == second.prompt_ids
    error = server.refusal(RESPONSES, body | {"reasoning": {"effort": "bad"}})
    assert error["param"] == "reasoning.effort" and "reasoning.effort" in error["message"]


def test_of_tools_that_nobody_runs_the_model_is_told_nothing_and_the_client_that(
    say, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    server: Served = say("hello")
    without = server.ask(RESPONSES, input="hello", tools=RESPONSE_TOOLS)
    for kind in get_args(Absent):
        absent = {"type": kind, "external_web_access": True}
        told = server.ask(RESPONSES, input="hello", tools=[absent, *RESPONSE_TOOLS])
        assert told["tools"] == without["tools"]
        prompts = [request.prompt_ids for request in server.engine.asked]
        assert prompts[0] == prompts[-1]
        assert f"of type {kind} are left out" in caplog.text
        alone = {"input": "hello", "tools": [absent], "tool_choice": "required"}
        assert "tools to choose from" in server.refusal(RESPONSES, alone)["message"]


CREW: Any = {"type": "namespace", "name": "crew", "tools": [{"type": "function", "name": "close"}]}
CREW_CALL = (
    "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.crew.close:0"
    "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
)


def test_a_function_of_a_namespace_is_called_and_goes_back_as_in_a_chat_with_the_whole_name(
    say,
) -> None:
    """The model calls NAMESPACE.NAME, the client sees both apart."""
    server: Served = say(CREW_CALL)
    first = server.openai.responses.create(model="fake", input="hello", tools=[CREW])
    called = first.output[-1].model_dump(exclude_none=True)
    assert (called["name"], called["namespace"]) == ("close", "crew")
    result = {"type": "function_call_output", "call_id": called["call_id"], "output": "done"}
    again = server.ask(RESPONSES, model="fake", input=[*HELLO, called, result], tools=[CREW])
    listed = server.http.get(f"{RESPONSES}/{again['id']}/input_items?order=asc").json()
    item = listed["data"][1]
    assert (item["name"], item["namespace"]) == ("close", "crew")
    function = {"name": "crew.close", "arguments": "{}"}
    call = {"id": called["call_id"], "type": "function", "function": function}
    turns = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [call]}]
    turns += [{"role": "tool", "content": "done", "tool_call_id": called["call_id"]}]
    tools = [{"type": "function", "function": {"name": "crew.close"}}]
    server.ask(CHAT, messages=turns, tools=tools)
    assert server.engine.asked[-1].prompt_ids == server.engine.asked[-2].prompt_ids
