"""Grammar of MiniMax-M2's tool calls, as llguidance reads it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serve.chat_format.json_values import allowed_types
from serve.chat_format.kimi_grammar import OPTIONS
from serve.chat_format.minimax_m2 import END_OF_VALUE
from serve.chat_format.tool import ToolSpec

SECTION = 'calls: /\\n{{0,3}}/ <minimax:tool_call> "\\n" {calls} </minimax:tool_call>'
CALL = 'call_{n}: {head} {parameters} "</invoke>\\n"'
PARAMETER = '{rule}: {head} {value} "\\n"'
TEXT = f"text[suffix={json.dumps(END_OF_VALUE)}]: /(.|\\n)*/"
ANY = 'any: "<parameter name=\\"" /[\\w.-]+/ "\\">" text "\\n"'


def minimax_calls(tools: Sequence[ToolSpec], once: bool) -> list[str]:
    """Rules of `calls`: one call or several of any of the functions.

    Parameters come in the order of the schema, each at most once; what is to be no string is JSON.
    """
    any_call = "(" + " | ".join(f"call_{n}" for n in range(len(tools))) + ")"
    rules = [SECTION.format(calls=any_call if once else f"{any_call}+"), TEXT, ANY]
    for n, tool in enumerate(tools):
        rules += _call(n, tool)
    return rules


def _call(n: int, tool: ToolSpec) -> Iterator[str]:
    schema = tool.parameters
    head = json.dumps(f'<invoke name="{tool.name}">\n')
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        yield CALL.format(n=n, head=head, parameters="any*")
        return
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    names = [
        f"parameter_{n}_{i}" + ("" if p in required else "?") for i, p in enumerate(properties)
    ]
    yield CALL.format(n=n, head=head, parameters=" ".join(names))
    for i, (name, value) in enumerate(properties.items()):
        rule = f"parameter_{n}_{i}"
        head = json.dumps(f'<parameter name="{name}">', ensure_ascii=False)
        if (texts := _choices(value)) is not None:
            yield f"{rule}_value: {texts}"
            yield PARAMETER.format(rule=rule, head=head, value=f"{rule}_value {_END}")
        elif "string" in allowed_types(value, schema):
            yield PARAMETER.format(rule=rule, head=head, value="text")
        else:
            inside = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            yield f"{rule}_value: %json {json.dumps({**inside, **value, **OPTIONS})}"
            yield PARAMETER.format(rule=rule, head=head, value=f"{rule}_value {_END}")


_END = json.dumps(END_OF_VALUE)


def _choices(schema: Any) -> str | None:
    """The strings a schema lists, if it lists nothing else."""
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(text, str) and text for text in listed):
        return None
    return " | ".join(json.dumps(text, ensure_ascii=False) for text in listed)
