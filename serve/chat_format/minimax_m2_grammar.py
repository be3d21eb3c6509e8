"""The llguidance grammar of MiniMax-M2's calls: their tags, and values by their schemas."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eagle3_jax.sampling.json_schema import pointer
from serve.chat_format.json_values import allowed_types, resolved
from serve.chat_format.parts import JSON_OPTIONS, ToolSpec, regex_body

END_OF_VALUE = "</parameter>"
CALLS_RULE = 'calls: /\\n{{0,3}}/ <minimax:tool_call> "\\n" {calls} </minimax:tool_call>'
CALL_RULE = 'call_{n}: {head} {parameters} "</invoke>\\n"'
FREE_CALL_RULE = 'call_{n}: {head} rest "\\n"'
REST_RULE = 'rest[suffix="</invoke>"]: /(.|\\n)*/'
PARAMETER_RULE = '{rule}: {head} {value} "\\n"'
TEXT_RULE = f"text[suffix={json.dumps(END_OF_VALUE)}]: /(.|\\n)*/"
ANY_RULE = 'any: "<parameter name=\\"" /[\\w.-]+/ "\\">" text "\\n"'
END_RULE = json.dumps(END_OF_VALUE)
STRING_RULE = """{rule}_text[suffix="</parameter>"]: VALUE_{name}
VALUE_{name}: {terms} & ~/(.|\\n)*<\\/parameter>(.|\\n)*/"""
ANYTHING = "(.|\\n)*"
EMPTY = '""'
UNREADABLE = re.compile("[\"'<>]")
"""Characters that a parameter's name, which is part of a tag, must not contain."""
BEYOND = (
    *("$ref", "allOf", "anyOf", "const", "dependencies", "dependentRequired", "dependentSchemas"),
    *("enum", "if", "maxProperties", "minProperties", "not", "oneOf", "patternProperties"),
    *("propertyNames", "unevaluatedProperties"),
)
"""Keywords that constrain all arguments together, which a grammar of single ones cannot."""


def call_rules(tools: Sequence[ToolSpec], once: bool) -> Iterator[str]:
    """Yield the grammar rules of `calls`.

    Parameters come in the order of the schema, each at most once. Values that are not strings are
    JSON. A call without a strict schema is any text up to its end. Raises ValueError for a schema
    that the format cannot express.
    """
    any_call = "(" + " | ".join(f"call_{n}" for n in range(len(tools))) + ")"
    yield CALLS_RULE.format(calls=any_call if once else f"{any_call}+")
    yield from (TEXT_RULE, ANY_RULE, REST_RULE)
    for n, tool in enumerate(tools):
        yield from _call(n, tool)


def _call(n: int, tool: ToolSpec) -> Iterator[str]:
    schema = tool.parameters
    head = json.dumps(f'<invoke name="{tool.name}">\n')
    if not tool.strict:
        yield FREE_CALL_RULE.format(n=n, head=head)
        return
    if beyond := [name for name in BEYOND if name in schema]:
        where = f"the parameters of {tool.name!r}: {pointer((beyond[0],))}"
        raise ValueError(f"{where} can't be enforced in this checkpoint's tool calls")
    required = schema.get("required")
    required = [n for n in required if isinstance(n, str)] if isinstance(required, list) else []
    properties = schema.get("properties")
    properties = dict(properties) if isinstance(properties, Mapping) else {}
    properties |= {name: {} for name in required if name not in properties}
    if unreadable := [name for name in properties if not name or UNREADABLE.search(name)]:
        where = f"the parameters of {tool.name!r}: {pointer(('properties', unreadable[0]))}"
        raise ValueError(f"{where} has characters that this checkpoint's tool calls can't spell")
    if not properties:
        any_number = "" if schema.get("additionalProperties") is False else "any*"
        yield CALL_RULE.format(n=n, head=head, parameters=any_number)
        return
    names = [
        f"parameter_{n}_{i}" + ("" if p in required else "?") for i, p in enumerate(properties)
    ]
    yield CALL_RULE.format(n=n, head=head, parameters=" ".join(names))
    for i, (name, value) in enumerate(properties.items()):
        yield from _parameter(f"{n}_{i}", name, value, schema)


def _parameter(place: str, name: str, value: Any, root: Mapping[str, Any]) -> Iterator[str]:
    rule, value = f"parameter_{place}", resolved(value, root)
    head = json.dumps(f'<parameter name="{name}">', ensure_ascii=False)
    types = allowed_types(value, root)
    if (texts := _choices(value)) is not None:
        yield f"{rule}_value: {texts}"
        yield PARAMETER_RULE.format(rule=rule, head=head, value=f"{rule}_value {END_RULE}")
    elif types == {"string"} and (terms := _terms(value)):
        yield STRING_RULE.format(rule=rule, name=place, terms=terms)
        yield PARAMETER_RULE.format(rule=rule, head=head, value=f"{rule}_text")
    elif "string" in types:
        yield PARAMETER_RULE.format(rule=rule, head=head, value="text")
    else:
        inside = {key: root[key] for key in ("$defs", "definitions") if key in root}
        yield f"{rule}_value: %json {json.dumps({**inside, **value, **JSON_OPTIONS})}"
        yield PARAMETER_RULE.format(rule=rule, head=head, value=f"{rule}_value {END_RULE}")


def _choices(schema: Any) -> str | None:
    """Return the values that a schema lists, as they appear in a call: strings are unquoted."""
    if not isinstance(schema, Mapping):
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(listed, list) or any(isinstance(value, dict | list) for value in listed):
        return None
    texts = [value if isinstance(value, str) else json.dumps(value) for value in listed]
    choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts if text)
    return f"({choices or EMPTY})?" if "" in texts else choices or None


def _terms(schema: Any) -> str:
    """Return llguidance terms that a string must match, or "" if any string is valid."""
    if not isinstance(schema, Mapping):
        return ""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    terms = [f"/(.|\\n){{{least},{most}}}/"] if least or most != "" else []
    if isinstance(pattern := schema.get("pattern"), str):
        terms.append(_regex(pattern))
    return " & ".join(terms)


def _regex(pattern: str) -> str:
    """Convert a pattern, which may match anywhere, to one that matches the whole string."""
    first = "" if pattern.startswith("^") else ANYTHING
    ends = pattern.endswith("$") and not pattern.endswith("\\$")
    core = regex_body(pattern.removeprefix("^")[: -1 if ends else None])
    return f"/{first}({core}){'' if ends else ANYTHING}/"
