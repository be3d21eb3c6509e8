"""Parses plain text as a JSON value of a type that a schema allows."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from eagle3_jax.sampling.json_schema import ASSERTIONS

OF_PYTHON: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
"""The JSON types of a value, by its Python type."""
SPELLED = {"True": "true", "False": "false", "None": "null"}


def allowed_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that a schema allows; "string" if it specifies none.

    `root` is the schema that its `$ref`s point into.
    """
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        found |= _own_types(part)
        for name in ("anyOf", "oneOf", "allOf"):
            waiting += _as_list(part.get(name))
        if isinstance(reference := part.get("$ref"), str):
            waiting.append(_target(reference, root))
    return frozenset(found or {"string"})


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Follow a schema that is only a reference into `root`. Returns other schemas unchanged."""
    seen: set[str] = set()
    while isinstance(schema, Mapping) and ASSERTIONS & schema.keys() == {"$ref"}:
        reference = schema["$ref"]
        if not isinstance(reference, str) or reference in seen:
            break
        if (target := _target(reference, root)) is None:
            break
        seen.add(reference)
        schema = target
    return schema


def json_text(text: str, types: frozenset[str]) -> str:
    """Return the text as a JSON value of one of the types, or else as a JSON string."""
    stripped = text.strip()
    stripped = SPELLED.get(stripped, stripped)
    try:
        value = json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = text
    kinds = OF_PYTHON[type(value)]
    if isinstance(value, float) and value.is_integer():
        kinds = (*kinds, "integer")
    read = types.intersection(kinds) - {"string"}
    return stripped if read else json.dumps(text, ensure_ascii=False)


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema itself states, or else those of the values it lists."""
    if "type" in schema:
        return {kind for kind in _as_list(schema["type"]) if isinstance(kind, str)}
    values = [*_as_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    return {kind for value in values for kind in OF_PYTHON.get(type(value), ())}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for key in reference.removeprefix("#").strip("/").split("/"):
        if not isinstance(found, Mapping):
            return None
        found = found.get(key.replace("~1", "/").replace("~0", "~"))
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
