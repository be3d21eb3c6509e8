"""A message's tokens are those of /v1/chat/completions for the same conversation and seed."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from called_tools import CHAT_TOOLS, PARAMETERS
from fake_server import Serve
from scripted_engine import AnyGrammars

from eagle3_jax.engine import Request
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.openai.service import ModelInfo

ARGUMENTS = {"city": "Oslo \u00fc", "days": [1, 2.5, None], "deep": {"a": True}}
TOOL = {"name": "weather", "description": "Of a city", "input_schema": PARAMETERS}
FUNCTION = CHAT_TOOLS[0]
NAMED = {"type": "function", "function": {"name": "weather"}}
OPTIONS: dict[str, Any] = {"max_tokens": 10, "seed": 5, "temperature": 0.7}
OPTIONS |= {"top_k": 9, "top_p": 0.8, "speculative": {"num_tokens": 2}}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "How is Oslo?"},
    {"role": "system", "content": "In Celsius."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I look it up.", "signature": "from elsewhere"},
            {"type": "text", "text": "One moment."},
            {"type": "tool_use", "id": "functions.weather:0", "name": "weather"}
            | {"input": ARGUMENTS},
            {"type": "tool_use", "id": "functions.weather:1", "name": "weather", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "functions.weather:0", "content": "5 degrees"},
            {"type": "tool_result", "tool_use_id": "functions.weather:1", "is_error": True}
            | {"content": [{"type": "text", "text": "no city"}]},
            {"type": "text", "text": "And Bergen?"},
        ],
    },
]
CALL = {"name": "weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
EMPTY = {"name": "weather", "arguments": "{}"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is Oslo?"},
    {"role": "system", "content": "In Celsius."},
    {
        "role": "assistant",
        "reasoning": "I look it up.",
        "content": "One moment.",
        "tool_calls": [
            {"id": "functions.weather:0", "type": "function", "function": CALL},
            {"id": "functions.weather:1", "type": "function", "function": EMPTY},
        ],
    },
    {"role": "tool", "tool_call_id": "functions.weather:0", "content": "5 degrees"},
    {"role": "tool", "tool_call_id": "functions.weather:1", "content": "Error: no city"},
    {"role": "user", "content": "And Bergen?"},
]
ON, OFF = {"type": "adaptive"}, {"type": "disabled"}
THINKING, NOT_THINKING = ({"chat_template_kwargs": {"thinking": on}} for on in (True, False))
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "thinking": ({"thinking": ON}, THINKING),
    "not thinking": ({"thinking": OFF}, NOT_THINKING),
    "a budget": (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking_token_budget": 1024, **THINKING},
    ),
    "effort": ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
    "strict": (
        {"tools": [TOOL | {"strict": True}]},
        {"tools": [{**FUNCTION, "function": FUNCTION["function"] | {"strict": True}}]},
    ),
    "stop": ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
    "auto": ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, {"tools": [FUNCTION]}),
    "none": (
        {"tools": [TOOL], "tool_choice": {"type": "none"}},
        {"tools": [FUNCTION], "tool_choice": "none"},
    ),
    "any": (
        {"tools": [TOOL], "tool_choice": {"type": "any"}, "thinking": ON},
        {"tools": [FUNCTION], "tool_choice": "required", **THINKING},
    ),
    "any, one": (
        {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
    ),
    "tool": (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}},
        {"tools": [FUNCTION], "tool_choice": NAMED},
    ),
    "format": (
        {"output_config": {"format": {"type": "json_schema", "schema": PARAMETERS}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": PARAMETERS}}},
    ),
}


@pytest.mark.parametrize("chat_format", ["kimi_k2", "minimax_m2"])
def test_a_message_is_the_chats_request_of_the_engine(say: Serve, chat_format: str) -> None:
    """Tokens depend on the engine's request alone."""
    model = ModelInfo(("fake",), "/models/fake", 1000)
    server = say("Hm.", chat_format=chat_format, grammars=AnyGrammars(), model=model)

    def asked(path: str, **body: Any) -> tuple[dict[str, Any], StructuredOutputs | None]:
        server.ask(path, **body, **OPTIONS)
        request: Request = server.engine.asked[-1]
        # Two forms are equal, though errors about them name different functions' parts.
        form = request.sampling.structured_outputs
        plain = replace(request.sampling, structured_outputs=None)
        return asdict(replace(request, request_id="", sampling=plain)), form

    for name, (message, chat) in PAIRS.items():
        if chat_format == "minimax_m2" and name == "not thinking":
            continue  # It always does.
        one = asked("/v1/messages", system="Be brief.", messages=TURNS, **message)
        other = asked("/v1/chat/completions", messages=MESSAGES, **chat)
        assert one == other, name
