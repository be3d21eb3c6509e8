"""Two tools, answers that think, speak and call both in each chat format, and who says them."""

from typing import Any

from chat_tokenizers import TOKENIZERS, kimi
from fake_server import Served
from scripted_engine import ScriptedEngine

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTIONS: list[dict[str, Any]] = [
    {"name": "weather", "description": "Of a city", "parameters": PARAMETERS},
    {"name": "time"},
]
CHAT_TOOLS: list[Any] = [{"type": "function", "function": function} for function in FUNCTIONS]
RESPONSE_TOOLS: list[Any] = [{"type": "function", **function} for function in FUNCTIONS]
THINKING = {"chat_template_kwargs": {"thinking": True}}
MARKS = ("section_begin", "section_end", "begin", "argument_begin", "end")
MARKS = tuple(f"<|tool_call{'s' if 'section' in mark else ''}_{mark}|>" for mark in MARKS)
"""Of Kimi's calls."""
KIMI_CALLS = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    '<|tool_call_argument_begin|>{"city": "Oslo", "days": 2}<|tool_call_end|>'
    "<|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
MINIMAX_CALLS = (
    '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n'
    '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="time">\n</invoke>\n'
    "</minimax:tool_call>"
)
ANSWERS = {
    "kimi_k2": f"I look it up.</think>One moment.{KIMI_CALLS}",
    "minimax_m2": f"I look it up.\n</think>\n\nOne moment.\n{MINIMAX_CALLS}",
}


def saying(*texts: str, chat_format: str = "kimi_k2") -> ScriptedEngine:
    """An engine that answers with these texts, in which special strings are special."""
    tokenizer = TOKENIZERS[chat_format]()
    answers = [tokenizer.encode(text, add_special=True) for text in texts]
    return ScriptedEngine(tokenizer=tokenizer, answers=answers)


def prompt_of(server: Served) -> str:
    """Return the engine's last prompt as text, marks included."""
    return kimi().decode(server.engine.asked[-1].prompt_ids, skip_special=False)
