"""The same conversations in the forms of Responses and of chats."""

from typing import Any

from called_tools import CHAT_TOOLS, FUNCTIONS, THINKING

TOOLS: list[Any] = [{"type": "function", **function} for function in FUNCTIONS]
CALL = {"call_id": "functions.weather:0", "name": "weather", "arguments": '{"city": "Oslo"}'}
CHAT_CALL = {
    "id": CALL["call_id"],
    "type": "function",
    "function": {"name": CALL["name"], "arguments": CALL["arguments"]},
}
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": ({"input": "hello"}, {"messages": [{"role": "user", "content": "hello"}]}),
    "instructions": (
        {"input": "hello", "instructions": "Be brief."},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hello"},
            ]
        },
    ),
    "leading messages of the system's": (
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "developer", "content": "Speak Latin."},
                {"role": "user", "content": "hello"},
                {"role": "developer", "content": "Or Greek."},
            ],
        },
        {
            "messages": [
                {"role": "system", "content": "Be brief.\n\nSpeak Latin."},
                {"role": "user", "content": "hello"},
                {"role": "system", "content": "Or Greek."},
            ]
        },
    ),
    "parts": (
        {
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": part} for part in ("hel", "lo")],
                }
            ]
        },
        {"messages": [{"role": "user", "content": "hello"}]},
    ),
    "a loop": (
        {
            "input": [
                {"role": "user", "content": "How is Oslo?"},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "I look it up."}],
                },
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "One moment.", "annotations": []}],
                },
                {"type": "function_call", "id": "fc_1", "status": "completed", **CALL},
                {
                    "type": "function_call_output",
                    "call_id": "functions.weather:0",
                    "output": [{"type": "input_text", "text": "5 degrees"}],
                },
            ],
            "tools": TOOLS,
        },
        {
            "messages": [
                {"role": "user", "content": "How is Oslo?"},
                {
                    "role": "assistant",
                    "reasoning_content": "I look it up.",
                    "content": "One moment.",
                    "tool_calls": [CHAT_CALL],
                },
                {
                    "role": "tool",
                    "tool_call_id": "functions.weather:0",
                    "content": "5 degrees",
                },
            ],
            "tools": CHAT_TOOLS,
        },
    ),
    "turns of the assistant": (
        {
            "input": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": "c"},
                {"type": "function_call", **CALL},
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "d"}]},
                {"type": "function_call", **CALL},
            ],
            "tools": TOOLS,
        },
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": "c", "tool_calls": [CHAT_CALL]},
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": "d",
                    "tool_calls": [CHAT_CALL],
                },
            ],
            "tools": CHAT_TOOLS,
        },
    ),
    "allowed tools": (
        {
            "input": "hello",
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "time"}],
            },
        },
        {
            "messages": [{"role": "user", "content": "hello"}],
            "tools": CHAT_TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "time"}}],
                },
            },
        },
    ),
    "options": (
        {
            "input": "hello",
            "tools": TOOLS,
            "tool_choice": "none",
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 7,
            "stop": ["x"],
            "logit_bias": {"5": 1.5},
            "cache_salt": "s",
            "parallel_tool_calls": False,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            **THINKING,
        },
        {
            "messages": [{"role": "user", "content": "hello"}],
            "tools": CHAT_TOOLS,
            "tool_choice": "none",
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 7,
            "stop": ["x"],
            "logit_bias": {"5": 1.5},
            "cache_salt": "s",
            "parallel_tool_calls": False,
            "logprobs": True,
            "top_logprobs": 2,
            **THINKING,
        },
    ),
}
"""The same conversation for /v1/responses and for /v1/chat/completions."""
