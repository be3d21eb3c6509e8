"""The engine is asked by a response and by a message what it is asked by the same chat.

Tokens depend on the engine's request alone.
"""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from called_tools import CHAT_TOOLS, PARAMETERS, RESPONSE_TOOLS
from fake_server import HELLO, Serve
from scripted_engine import AnyGrammars

from eagle3_jax.engine import Request
from serve.openai.service import ModelInfo

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 10, "seed": 5},
    RESPONSES: {"input": "hello", "max_output_tokens": 10, "seed": 5},
    MESSAGES: {"messages": HELLO, "max_tokens": 10, "seed": 5},
}
ARGUMENTS = {"city": "Oslo \u00fc", "days": [1, 2.5, None], "deep": {"a": True}}
IDS = "functions.weather:0", "functions.weather:1"
WRITTEN = {IDS[0]: json.dumps(ARGUMENTS, ensure_ascii=False), IDS[1]: "{}"}
TOOL = {"name": "weather", "description": "Of a city", "input_schema": PARAMETERS}
FUNCTION = CHAT_TOOLS[0]
NAMED = {"type": "function", "function": {"name": "weather"}}
ALLOWED = {"mode": "auto", "tools": [NAMED]}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def parts(kind: str, *texts: str) -> list[dict[str, Any]]:
    return [{"type": kind, "text": text} for text in texts]


CHAT_CALLS = [
    {"id": call, "type": "function", "function": {"name": "weather", "arguments": arguments}}
    for call, arguments in WRITTEN.items()
]
IN_CHAT = [
    said("system", "Be brief."),
    said("user", "How is Oslo?"),
    said("system", "In Celsius."),
    said("assistant", "One moment.", reasoning="I look it up.", tool_calls=CHAT_CALLS),
    said("tool", "5 degrees", tool_call_id=IDS[0]),
    said("tool", "Error: no city", tool_call_id=IDS[1]),
    said("user", "And Bergen?"),
]
IN_RESPONSES = [
    said("user", "How is Oslo?"),
    said("developer", "In Celsius."),
    {"type": "reasoning", "id": "rs_1", "content": parts("reasoning_text", "I look it up.")},
    said("assistant", parts("output_text", "One moment."), type="message", id="msg_1"),
    *(
        {"type": "function_call", "call_id": call, "name": "weather", "arguments": arguments}
        for call, arguments in WRITTEN.items()
    ),
    {"type": "function_call_output", "call_id": IDS[0], "output": parts("input_text", "5 degrees")},
    {"type": "function_call_output", "call_id": IDS[1], "output": "Error: no city"},
    said("user", "And Bergen?"),
]
IN_MESSAGES = [
    said("user", "How is Oslo?"),
    said("system", "In Celsius."),
    said(
        "assistant",
        [
            {"type": "thinking", "thinking": "I look it up.", "signature": "from elsewhere"},
            *parts("text", "One moment."),
            {"type": "tool_use", "id": IDS[0], "name": "weather", "input": ARGUMENTS},
            {"type": "tool_use", "id": IDS[1], "name": "weather", "input": {}},
        ],
    ),
    said(
        "user",
        [
            {"type": "tool_result", "tool_use_id": IDS[0], "content": "5 degrees"},
            {"type": "tool_result", "tool_use_id": IDS[1], "is_error": True}
            | {"content": parts("text", "no city")},
            *parts("text", "And Bergen?"),
        ],
    ),
]
THINKING, NOT_THINKING = ({"chat_template_kwargs": {"thinking": on}} for on in (True, False))
SAMPLING = {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "speculative": {"num_tokens": 2}}
MORE = {"logit_bias": {"5": 1.5}, "cache_salt": "s", "top_logprobs": 2, **THINKING}
STRICT = FUNCTION | {"function": FUNCTION["function"] | {"strict": True}}
SCHEMA = {"type": "json_schema", "schema": PARAMETERS}

Fields = dict[str, Any]
SAME: dict[str, tuple[Fields, Fields | None, Fields | None]] = {
    "a conversation": (
        {"messages": IN_CHAT, "tools": CHAT_TOOLS[:1]},
        {"instructions": "Be brief.", "input": IN_RESPONSES, "tools": RESPONSE_TOOLS[:1]},
        {"system": "Be brief.", "messages": IN_MESSAGES, "tools": [TOOL]},
    ),
    "parts": (
        {},
        {"input": [said("user", parts("input_text", "hel", "lo"))]},
        {"messages": [said("user", parts("text", "hel", "lo"))]},
    ),
    "the system's messages": (
        {"messages": [said("system", "Be brief.\n\nLatin."), *HELLO]},
        {"instructions": "Be brief.", "input": [said("developer", "Latin."), *HELLO]},
        None,
    ),
    "thinking": (THINKING, {"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive"}}),
    "not thinking": (NOT_THINKING, None, {"thinking": {"type": "disabled"}}),
    "a budget": (
        {"thinking_token_budget": 1024, **THINKING},
        {"thinking_token_budget": 1024, **THINKING},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    "effort": (
        {"reasoning_effort": "low"},
        {"reasoning": {"effort": "low"}},
        {"output_config": {"effort": "low"}},
    ),
    "sampling": (SAMPLING, SAMPLING, SAMPLING),
    "more of responses": (
        MORE | {"logprobs": True},
        MORE | {"include": ["message.output_text.logprobs"]},
        None,
    ),
    "stop": ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}, {"stop_sequences": ["a", "b"]}),
    "strict": (
        {"tools": [STRICT]},
        {"tools": [{"type": "function", **STRICT["function"]}]},
        {"tools": [TOOL | {"strict": True}]},
    ),
    "auto": (
        {"tools": [FUNCTION]},
        {"tools": RESPONSE_TOOLS[:1], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": {"type": "auto"}},
    ),
    "none": (
        {"tools": [FUNCTION], "tool_choice": "none"},
        {"tools": RESPONSE_TOOLS[:1], "tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": {"type": "none"}},
    ),
    "any": (
        {"tools": [FUNCTION], "tool_choice": "required", **THINKING},
        {"tools": RESPONSE_TOOLS[:1], "tool_choice": "required", **THINKING},
        {"tools": [TOOL], "tool_choice": {"type": "any"}, "thinking": {"type": "adaptive"}},
    ),
    "any, one": (
        {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": RESPONSE_TOOLS[:1], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ),
    "a named tool": (
        {"tools": [FUNCTION], "tool_choice": NAMED},
        {"tools": RESPONSE_TOOLS[:1], "tool_choice": {"type": "function", "name": "weather"}},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}},
    ),
    "allowed tools": (
        {
            "tools": CHAT_TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED},
        },
        {
            "tools": RESPONSE_TOOLS,
            "tool_choice": {"type": "allowed_tools", "mode": "auto"}
            | {"tools": [{"type": "function", "name": "weather"}]},
        },
        None,
    ),
    "format": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": PARAMETERS}}},
        {"text": {"format": {"name": "a", **SCHEMA}}},
        {"output_config": {"format": SCHEMA}},
    ),
}
"""Fields of a chat, and the same in a response and a message, if they have it."""


@pytest.mark.parametrize("chat_format", ["kimi_k2", "minimax_m2"])
def test_the_engine_gets_the_chats_request(say: Serve, chat_format: str) -> None:
    model = ModelInfo(("fake",), "/models/fake", 1000)
    server = say("Hm.", chat_format=chat_format, grammars=AnyGrammars(), model=model)

    def asked(path: str, fields: Fields) -> Any:
        server.ask(path, **ASKED[path] | fields)
        request: Request = server.engine.asked[-1]
        # Two forms are equal, though errors about them name different functions' parts.
        form = request.sampling.structured_outputs
        plain = replace(request.sampling, structured_outputs=None)
        return asdict(replace(request, request_id="", sampling=plain)), form

    for name, (chat, *others) in SAME.items():
        if chat_format == "minimax_m2" and name == "not thinking":
            continue  # It always does.
        expected = asked(CHAT, chat)
        for path, fields in zip((RESPONSES, MESSAGES), others, strict=True):
            assert fields is None or asked(path, fields) == expected, (name, path)
