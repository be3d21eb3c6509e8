"""Grammar of Kimi's tool calls, as llguidance reads it."""

import json
from collections.abc import Sequence

from eagle3_jax.sampling.structured_outputs import WHITESPACE
from serve.chat_format.tool import ToolSpec

OPTIONS = {"x-guidance": {"whitespace_pattern": WHITESPACE}}
SECTION = "calls: <|tool_calls_section_begin|> {calls} <|tool_calls_section_end|>"
CALL = (
    "call_{n}: <|tool_call_begin|> {header} INDEX <|tool_call_argument_begin|> "
    "arguments_{n} <|tool_call_end|>\narguments_{n}: %json {schema}"
)
INDEX = "INDEX: /[0-9]{1,3}/"


def kimi_calls(tools: Sequence[ToolSpec], once: bool) -> list[str]:
    """Rules of `calls`: one call or several of any of the functions, arguments by their schemas."""
    any_call = "(" + " | ".join(f"call_{n}" for n in range(len(tools))) + ")"
    rules = [SECTION.format(calls=any_call if once else f"{any_call}+"), INDEX]
    for n, tool in enumerate(tools):
        schema = json.dumps({"type": "object", **tool.parameters, **OPTIONS})
        header = json.dumps(f"functions.{tool.name}:")
        rules.append(CALL.format(n=n, header=header, schema=schema))
    return rules
