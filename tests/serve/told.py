"""Conversations as clients tell them, and the prompts that a server makes of them."""

from collections.abc import Callable
from typing import Any

from called_tools import prompt_of
from chat_tokenizers import minimax
from fake_server import Served
from scripted_engine import ScriptedEngine

from serve.openai.service import ModelInfo

MODEL = ModelInfo(("fake",), "/models/fake", 2**16)
Say = Callable[..., Served]
USER = {"role": "user", "content": "Weather?"}
OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'


def asked(server: Served, path: str, **body: Any) -> str:
    """The prompt of a request."""
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    answer = server.http.post(path, json=limit | body)
    assert answer.status_code == 200, answer.text
    return shown(server)


def shown(server: Served) -> str:
    """The prompt of the last request."""
    if server.service.reading.reader.name == "kimi_k2":
        return prompt_of(server)
    assert isinstance(server.engine, ScriptedEngine)
    return minimax().decode(server.engine.requests[-1].prompt_ids, skip_special=False)


def with_room(server: Served) -> Served:
    """The server, whose engine takes prompts as long as MODEL says."""
    assert isinstance(server.engine, ScriptedEngine)
    server.engine.max_model_len = MODEL.max_model_len
    return server


def chat_call(call_id: Any, arguments: Any = OSLO, name: str = "weather") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*ids: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [chat_call(i) for i in ids], **more}


def result(call_id: Any, content: str = "7 degrees") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


# Items of Responses, a letter each, of which clients send any order.
ITEMS: dict[str, dict[str, Any]] = {
    "u": USER,
    "d": {"role": "developer", "content": "In Celsius."},
    "r": {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "I think."}]},
    "R": {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Thought."}]},
    "m": {"type": "message", "role": "assistant", "content": "One moment."},
    "n": {"type": "message", "role": "assistant", "content": " Still."},
    "a": {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": OSLO},
    "b": {"type": "function_call", "call_id": "call_b", "name": "weather", "arguments": ROME},
    "A": {"type": "function_call_output", "call_id": "call_a", "output": "7 degrees"},
    "B": {"type": "function_call_output", "call_id": "call_b", "output": "20 degrees"},
}
