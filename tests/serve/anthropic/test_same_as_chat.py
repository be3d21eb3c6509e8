"""A message's tokens are those of /v1/chat/completions for the same conversation and seed."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from fake_server import Served
from scripted_engine import ScriptedEngine

from eagle3_jax.engine import Request
from eagle3_jax.sampling.structured_outputs import StructuredOutputs

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ARGUMENTS = {"city": "Oslo \u00fc", "days": [1, 2.5, None], "deep": {"a": True}}
TOOL = {"name": "weather", "description": "Weather in a city", "input_schema": SCHEMA}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather in a city", "parameters": SCHEMA},
}
NAMED = {"type": "function", "function": {"name": "weather"}}
OPTIONS = {"max_tokens": 10, "seed": 5, "temperature": 0.7, "top_k": 9, "top_p": 0.8}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "How is Oslo?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I look it up.", "signature": "from elsewhere"},
            {"type": "text", "text": "One moment."},
            {"type": "tool_use", "id": "functions.weather:0", "name": "weather"}
            | {"input": ARGUMENTS},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "functions.weather:0", "content": "5 degrees"},
            {"type": "text", "text": "And Bergen?"},
        ],
    },
]
CALL = {"name": "weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is Oslo?"},
    {
        "role": "assistant",
        "reasoning": "I look it up.",
        "content": "One moment.",
        "tool_calls": [{"id": "functions.weather:0", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "functions.weather:0", "content": "5 degrees"},
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
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    ),
}


class AnyGrammars:
    """Takes every constraint."""

    def known(self, constraint: Any) -> Any:
        return None

    def compile(self, constraint: Any) -> Any:
        return None


@pytest.mark.parametrize("chat_format", ["kimi_k2", "minimax_m2"])
def test_a_message_is_the_chats_request_of_the_engine(
    say: Callable[..., Served], chat_format: str
) -> None:
    """What the engine is asked is all that tokens depend on."""
    server = say("Hm.", chat_format=chat_format, grammars=AnyGrammars())
    assert isinstance(server.engine, ScriptedEngine)

    def asked(path: str, body: dict[str, Any]) -> tuple[dict[str, Any], StructuredOutputs | None]:
        answer = server.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        request: Request = server.engine.requests[-1]  # type: ignore[attr-defined]
        # Two forms are equal, though errors about them name different functions' parts.
        form = request.sampling.structured_outputs
        plain = replace(request.sampling, structured_outputs=None)
        return asdict(replace(request, request_id="", sampling=plain)), form

    for name, (message, chat) in PAIRS.items():
        if chat_format == "minimax_m2" and name == "not thinking":
            continue  # It always does.
        one = asked(
            "/v1/messages", {"system": "Be brief.", "messages": TURNS, **OPTIONS, **message}
        )
        other = asked("/v1/chat/completions", {"messages": MESSAGES, **OPTIONS, **chat})
        assert one == other, name


@pytest.mark.xdist_group("served pair")
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_real_engine_answers_a_message_as_a_chat(server: Served, temperature: float) -> None:
    conversations: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "text": (
            [{"role": "user", "content": "hello"}],
            [{"role": "user", "content": "hello"}],
            {},
        ),
        "a system": (TURNS[:1], MESSAGES[:2], {"system": "Be brief."}),
        "a loop": (TURNS, MESSAGES, {"system": "Be brief."}),
    }
    options = {"max_tokens": 40, "seed": 5, "temperature": temperature}
    for name, (turns, messages, system) in conversations.items():
        asked = {"messages": turns, **system, **options}
        message = server.http.post("/v1/messages", json=asked).json()
        chat = server.http.post("/v1/chat/completions", json={"messages": messages, **options})
        said, chats = chat.json()["choices"][0]["message"], chat.json()["usage"]
        text = "".join(b.get("thinking", "") + b.get("text", "") for b in message["content"])
        assert text == said.get("reasoning", "") + (said["content"] or ""), name
        assert text or message["usage"]["output_tokens"] == 1
        assert message["usage"]["output_tokens"] == chats["completion_tokens"], name
        cached = message["usage"]["cache_read_input_tokens"]
        assert message["usage"]["input_tokens"] + cached == chats["prompt_tokens"], name
