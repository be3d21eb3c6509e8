"""The engine is asked by a response what it is asked by the same chat."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from called_tools import ANSWERS, CHAT_TOOLS, RESPONSE_TOOLS, THINKING
from fake_server import Served
from scripted_engine import AnyGrammars

from serve.responses.tools import Absent, warn_of_absent_tool

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
MORE: dict[str, Any] = {"seed": 11, "max_output_tokens": 40}
CHAT_MORE: dict[str, Any] = {"seed": 11, "max_completion_tokens": 40}
ARGUMENTS = '{"city": "Oslo"}'
CALL = {"type": "function_call", "call_id": "functions.weather:0", "name": "weather"}
CALL["arguments"] = ARGUMENTS
FUNCTION = {"name": "weather", "arguments": ARGUMENTS}
CHAT_CALL = {"id": "functions.weather:0", "type": "function", "function": FUNCTION}
HELLO = {"role": "user", "content": "hello"}
NAMED = {"type": "function", "name": "time"}
CHAT_NAMED = {"type": "function", "function": {"name": "time"}}
SAME_FIELDS: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop": ["x"]}
SAME_FIELDS |= {"logit_bias": {"5": 1.5}, "cache_salt": "s", "parallel_tool_calls": False}
SAME_FIELDS |= {"top_logprobs": 2, "tool_choice": "none", **THINKING}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def thought(text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}


def output(text: str) -> dict[str, Any]:
    """Return the model's message in the form in which a client sends it back."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return said("assistant", content, type="message", id="msg_1", status="completed")


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": ({"input": "hello"}, {"messages": [HELLO]}),
    "parts": (
        {"input": [said("user", [{"type": "input_text", "text": p} for p in ("hel", "lo")])]},
        {"messages": [HELLO]},
    ),
    "the system's messages": (
        {
            "instructions": "Be brief.",
            "input": [said("developer", "Latin."), HELLO, said("developer", "Or Greek.")],
        },
        {"messages": [said("system", "Be brief.\n\nLatin."), HELLO, said("system", "Or Greek.")]},
    ),
    "a loop": (
        {
            "input": [
                HELLO,
                thought("I look it up."),
                output("One moment."),
                CALL | {"id": "fc_1", "status": "completed"},
                {
                    "type": "function_call_output",
                    "call_id": "functions.weather:0",
                    "output": [{"type": "input_text", "text": "5 degrees"}],
                },
            ],
            "tools": RESPONSE_TOOLS,
        },
        {
            "messages": [
                HELLO,
                said(
                    "assistant",
                    "One moment.",
                    reasoning_content="I look it up.",
                    tool_calls=[CHAT_CALL],
                ),
                said("tool", "5 degrees", tool_call_id="functions.weather:0"),
            ],
            "tools": CHAT_TOOLS,
        },
    ),
    "turns of the assistant": (
        {
            "input": [
                HELLO,
                said("assistant", "b"),
                said("assistant", "c"),
                CALL,
                thought("d"),
                CALL,
            ],
            "tools": RESPONSE_TOOLS,
        },
        {
            "messages": [
                HELLO,
                said("assistant", "b"),
                said("assistant", "c", tool_calls=[CHAT_CALL]),
                said("assistant", "", reasoning_content="d", tool_calls=[CHAT_CALL]),
            ],
            "tools": CHAT_TOOLS,
        },
    ),
    "allowed tools": (
        {
            "input": "hello",
            "tools": RESPONSE_TOOLS,
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]},
        },
        {
            "messages": [HELLO],
            "tools": CHAT_TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [CHAT_NAMED]},
            },
        },
    ),
    "a named tool": (
        {"input": "hello", "tools": RESPONSE_TOOLS, "tool_choice": NAMED},
        {"messages": [HELLO], "tools": CHAT_TOOLS, "tool_choice": CHAT_NAMED},
    ),
    "options": (
        {
            "input": "hello",
            "tools": RESPONSE_TOOLS,
            "include": ["message.output_text.logprobs"],
            **SAME_FIELDS,
        },
        {"messages": [HELLO], "tools": CHAT_TOOLS, "logprobs": True, **SAME_FIELDS},
    ),
}
"""The same conversation for /v1/responses and for /v1/chat/completions."""


@pytest.mark.parametrize("chat_format", ANSWERS)
def test_the_engine_gets_the_same_request(say, chat_format: str) -> None:
    server: Served = say("hello", chat_format=chat_format, grammars=AnyGrammars())
    for name, (body, chat) in SAME.items():
        server.ask(RESPONSES, **body | MORE)
        server.ask(CHAT, **chat | CHAT_MORE)
        ours, chats = server.engine.asked[-2:]
        assert replace(ours, request_id="") == replace(chats, request_id=""), name


def test_reasoning_effort_does_what_it_does_in_a_chat(say) -> None:
    server: Served = say("hello")
    body, chat = SAME["text"]
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
    warn_of_absent_tool.cache_clear()
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
    again = server.ask(RESPONSES, model="fake", input=[HELLO, called, result], tools=[CREW])
    listed = server.http.get(f"{RESPONSES}/{again['id']}/input_items?order=asc").json()
    item = listed["data"][1]
    assert (item["name"], item["namespace"]) == ("close", "crew")
    function = {"name": "crew.close", "arguments": "{}"}
    call = {"id": called["call_id"], "type": "function", "function": function}
    turns = [HELLO, said("assistant", "", tool_calls=[call])]
    turns += [said("tool", "done", tool_call_id=called["call_id"])]
    tools = [{"type": "function", "function": {"name": "crew.close"}}]
    server.ask(CHAT, messages=turns, tools=tools)
    assert server.engine.asked[-1].prompt_ids == server.engine.asked[-2].prompt_ids
