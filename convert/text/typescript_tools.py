"""Declare tools as a TypeScript namespace, the form that Kimi-K2.5 and later were trained on.

Their published tokenizer class writes the request's tools as TypeScript types and passes the text
to the chat template as `tools_ts_str`. The template prints the tools as JSON if the text is missing
or empty. Any template that reads the variable gets it here, whatever the checkpoint's name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convert.text.chat_template import variables_of

VARIABLE = "tools_ts_str"
MAX_DEPTH = 128
"""Maximum nesting of schemas. The published code fails at about 250, where Python's stack ends."""
MAX_CHARACTERS = 2**22
"""Maximum length of a schema's text, more than a context holds: short bodies can make long
texts."""
UNDECLARABLE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors after which the tools can be shown as JSON only."""
IN_TYPE_LISTS = {name: name for name in ("string", "number", "boolean", "null")}
IN_TYPE_LISTS |= {"integer": "number", "object": "{}", "array": "Array<any>"}
"""Text of each type that a list of types may name."""
CHECKED_IN_ENUMS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
}
"""Types that the values of an enum must have. Booleans are integers in Python."""
BOUNDS: dict[str, tuple[str, ...]] = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
"""Keywords that become comments, in the order in which they are shown."""


def with_tool_declarations(options: Mapping[str, Any], template: str) -> dict[str, Any]:
    """Return a template's variables, with tools sorted and declared if it reads declarations.

    `options` are the template's variables, the request's `tools` among them.
    """
    tools = options.get("tools")
    if not tools or VARIABLE not in variables_of(template):
        return dict(options)
    tools = sorted_by_key(tools)
    text = declare_tools(tools)
    return {**options, "tools": tools, **({} if text is None else {VARIABLE: text})}


def sorted_by_key(value: Any) -> Any:
    """Return a JSON value whose objects, at any depth, have their keys ordered by code point."""
    if isinstance(value, dict):
        return {key: sorted_by_key(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [sorted_by_key(item) for item in value]
    return value


def declare_tools(tools: Sequence[Any]) -> str | None:
    """Return the namespace of a request's functions, "" if there are none.

    `tools` are in OpenAI's form with sorted keys. Returns None if a tool has a schema that this
    form cannot show: then all tools are shown as JSON, as in the published code.
    """
    try:
        functions = [tool.get("function") for tool in tools if tool.get("type") == "function"]
        texts = [_function_text(function) for function in functions if function]
    except UNDECLARABLE:
        return None
    if not texts:
        return ""
    return "\n".join(["# Tools\n\n## functions\nnamespace functions {", *texts, "}\n"])


class _Names:
    """Names that the schemas of one function may use, updated as they are read in order.

    Attributes:
        definitions: schemas of the `$defs` that were read, by name.
        parameters_named: whether a schema referred to the parameters themselves by `#`.
        depth: number of schemas around the current one.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self.parameters_named = False
        self.depth = 0

    def resolve(self, reference: str) -> str:
        """Return the name of a `$ref`; ValueError if it refers to nothing read so far."""
        if reference == "#":
            self.parameters_named = True
            return "parameters"
        name = reference.rpartition("/")[2]
        if not reference.startswith("#/$defs/") or isinstance(self.definitions[name], bool):
            raise ValueError("a reference to what was not read")
        return name


@dataclass(frozen=True)
class _Object:
    """An object schema that has been read.

    `properties` holds, ordered by name, whether each is required and its text. `rest` is the type
    of additional properties, if a schema describes them.
    """

    schema: dict[str, Any]
    properties: list[tuple[bool, str]]
    rest: str

    def text(self, indent: str) -> str:
        """Return the type, with required properties first."""
        required = [text for is_required, text in self.properties if is_required]
        optional = [text for is_required, text in self.properties if not is_required]
        return _braced([*required, *optional, *self._index_signature(indent)], indent)

    def _index_signature(self, indent: str) -> list[str]:
        match self.schema.get("additionalProperties"):
            case None:
                return []
            case True:
                kind = "any"
            case False:
                kind = "never"
            case dict():
                kind = self.rest
            case _:
                raise TypeError("additionalProperties is no schema")
        return [f"{indent}  [k: string]: {kind}"]


def _function_text(function: dict[str, Any]) -> str:
    names = _Names()
    parameters = _read_object(function.get("parameters") or {}, "", names)
    body, lines = "parameters", []
    if names.parameters_named:
        fields = [text for _, text in parameters.properties]
        lines.append(f"interface parameters {_braced(fields, '')}")
    else:
        body = parameters.text("")
    # Definitions that are registered while these are read get no interface.
    for name, schema in list(names.definitions.items()):
        kind = _type_text(schema, "", names)
        lines += [*_description_lines(schema.get("description"), ""), f"interface {name} {kind}"]
    lines += _description_lines(function.get("description"), "")
    return "\n".join([*lines, f"type {function.get('name', 'function')} = (_: {body}) => any;"])


def _read_object(schema: dict[str, Any], indent: str, names: _Names) -> _Object:
    """Read an object schema, whose references may name only schemas read before."""
    for name, definition in schema.get("$defs", {}).items():
        names.definitions[name] = definition
    inner, rest = indent + "  ", schema.get("additionalProperties")
    rest_text = _type_text(rest, inner, names) if isinstance(rest, dict) else ""
    properties = schema.get("properties", {}).items()
    required = set(schema.get("required", ())) if properties else set()
    fields = []
    for name, field in properties:
        lines = _comment_lines(field, inner)
        if isinstance(field, dict) and field.get("default") is not None:
            lines.append(f"{inner}// Default: {_default_text(field['default'])}")
        mark = "" if name in required else "?"
        lines.append(f"{inner}{name}{mark}: {_type_text(field, inner, names)}")
        fields.append((name in required, "\n".join(lines)))
    return _Object(schema, fields, rest_text)


def _type_text(schema: Any, indent: str, names: _Names) -> str:
    """Return the type that a schema describes, whose first line follows text at `indent`."""
    names.depth += 1
    if names.depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} schemas inside each other")
    match schema:
        case bool():
            text = "any" if schema else "null"
        case {"$ref": reference}:
            text = names.resolve(reference)
        case {"anyOf": schemas}:
            text = " | ".join([_type_text(entry, indent, names) for entry in schemas])
        case {"enum": values}:
            text = " | ".join(_enum_texts(values, schema.get("type")))
        case {"type": list(kinds)}:
            text = " | ".join([IN_TYPE_LISTS[kind] for kind in kinds])
        case {"type": "object"}:
            text = _read_object(schema, indent, names).text(indent)
        case {"type": "array"}:
            text = _array_text(schema.get("items"), indent, names)
        case {"type": str(kind)}:
            text = "number" if kind == "integer" else kind
        case dict() if not schema:
            text = "any"
        case _:
            raise ValueError("a schema without $ref, anyOf, enum and type")
    names.depth -= 1
    _check_size(len(text))
    return text


def _array_text(items: Any, indent: str, names: _Names) -> str:
    if not items:
        return "Array<any>"
    inner = indent + "  "
    if lines := _comment_lines(items, inner):
        lines.append(f"{inner}{_type_text(items, inner, names)}")
        return "\n".join(["Array<", *lines, f"{indent}>"])
    return f"Array<{_type_text(items, indent, names)}>"


def _enum_texts(values: Sequence[Any], kind: Any) -> list[str]:
    """Return the values as text; ValueError for one that is not of the schema's type."""
    if isinstance(kind, list):
        (kind,) = [name for name in kind if name != "null"] if len(kind) == 2 else kind
    types = CHECKED_IN_ENUMS.get(kind) if isinstance(kind, str) else None
    if types and not all(value is None or isinstance(value, types) for value in values):
        raise ValueError(f"an enum with a value that is no {kind}")
    return [f'"{value}"' if isinstance(value, str) else str(value) for value in values]


def _comment_lines(schema: Any, indent: str) -> list[str]:
    """Return the comments above a schema's type: its description, and the bounds of plain types."""
    if not isinstance(schema, dict):
        return []
    lines = _description_lines(schema.get("description"), indent)
    kind = None if {"$ref", "anyOf", "enum"} & schema.keys() else schema.get("type")
    keys = BOUNDS.get(kind, ()) if isinstance(kind, str) else ()
    if bounds := [f"{key}: {schema[key]}" for key in keys if key in schema]:
        lines.append(f"{indent}// {', '.join(bounds)}")
    return lines


def _description_lines(description: Any, indent: str) -> list[str]:
    lines = description.split("\n") if description else []
    _check_size(len(lines) * len(indent))
    return [f"{indent}// {line}" if line else "" for line in lines]


def _check_size(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise ValueError(f"more than {MAX_CHARACTERS} characters")


def _default_text(value: Any) -> str:
    return str(value) if isinstance(value, (int, float)) else json.dumps(value, ensure_ascii=False)


def _braced(fields: Sequence[str], indent: str) -> str:
    return "\n".join(["{", ",\n".join(fields), indent + "}"]) if fields else "{}"
