"""JSON schemas: keywords that hold subschemas or bar values, and removal of those that bar none.

llguidance refuses every use of a keyword that it does not implement, although many schema
generators write such keywords with values that every instance meets, such as `uniqueItems: false`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

SCHEMA_KEYWORDS = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not"),
    *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
"""Keywords whose value is a schema."""
LIST_KEYWORDS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
"""Keywords whose value is a list of schemas."""
DEFINITIONS = ("$defs", "definitions")
"""Keywords whose value maps names to schemas that only references use."""
MAP_KEYWORDS = (
    *(*DEFINITIONS, "dependencies", "dependentSchemas", "patternProperties", "properties"),
)
"""Keywords whose value maps names to schemas."""
ASSERTIONS = {
    *(*SCHEMA_KEYWORDS, *LIST_KEYWORDS, *MAP_KEYWORDS, "$dynamicRef", "$recursiveRef", "$ref"),
    *("const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "format"),
    *("maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains"),
    *("minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern", "required"),
    *("type", "uniqueItems"),
} - {*DEFINITIONS}
"""Keywords that can bar a value, in any draft. All others are annotations."""


def subschemas(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the schemas directly within `schema`, each with the keys that lead to it."""
    for name, value in schema.items() if isinstance(schema, Mapping) else ():
        if name in LIST_KEYWORDS and isinstance(value, list):
            yield from (((name, f"{n}"), inner) for n, inner in enumerate(value))
        elif name in MAP_KEYWORDS and isinstance(value, Mapping):
            yield from (((name, key), inner) for key, inner in value.items())
        elif name in SCHEMA_KEYWORDS:
            yield (name,), value


def pointer(keys: tuple[str, ...]) -> str:
    """Return the JSON pointer, as a URI fragment, of the place that the keys lead to."""
    return "/".join(["#", *(key.replace("~", "~0").replace("/", "~1") for key in keys)])


FORMATS = (
    *("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri"),
    "uuid",
)
"""Formats that llguidance enforces. Every other format is an annotation here."""
ONLY_OF = {
    **dict.fromkeys(("contains", "maxContains", "minContains", "uniqueItems"), "array"),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), "object"),
    **{"format": "string", "propertyNames": "object", "unevaluatedItems": "array"},
    **{"unevaluatedProperties": "object"},
}
"""Keywords that bar values of one type only."""
TYPES = {"array", "boolean", "null", "number", "object", "string"}
OLD_DRAFTS = [f"http://json-schema.org/draft-0{number}/schema" for number in (4, 6, 7)]
"""Values of `$schema` of drafts that have no `minContains`."""
NEW_DRAFTS = [f"https://json-schema.org/draft/{year}/schema" for year in ("2019-09", "2020-12")]
DRAFTS = [*OLD_DRAFTS, *NEW_DRAFTS]
"""Values of `$schema` that llguidance knows."""

Keywords = Mapping[str, Any]


def drop_vacuous_keywords(schema: Any) -> Any:
    """Return `schema` without the keywords that bar no value.

    The same values stay valid, and subschemas keep their places. Literal values (`enum`, `const`,
    ...) and property names are never taken for keywords. `x-guidance`, which holds llguidance's own
    options, is dropped too. Values that are not schemas are returned unchanged.
    """
    if not isinstance(schema, Mapping):
        return schema
    kept = _without_vacuous(schema, has_min_contains=_draft(schema) not in OLD_DRAFTS)
    unused = {"x-guidance"} if _has_reference(schema) else {"x-guidance", "$id"}
    return {name: value for name, value in kept.items() if name not in unused}


def _draft(schema: Keywords) -> str | None:
    dialect = schema.get("$schema")
    return dialect.rstrip("#") if isinstance(dialect, str) else None


def _has_reference(schema: Any) -> bool:
    waiting = [schema]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping) and "$ref" in found:
            return True
        waiting += [inner for _, inner in subschemas(found)]
    return False


def _without_vacuous(schema: Any, has_min_contains: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema

    def inside(name: str, value: Any) -> Any:
        if name in LIST_KEYWORDS and isinstance(value, list):
            return [_without_vacuous(one, has_min_contains) for one in value]
        if name in MAP_KEYWORDS and isinstance(value, Mapping):
            return {key: _without_vacuous(one, has_min_contains) for key, one in value.items()}
        return _without_vacuous(value, has_min_contains) if name in SCHEMA_KEYWORDS else value

    kept = {name: inside(name, value) for name, value in schema.items()}
    if not has_min_contains:
        kept = {name: kept[name] for name in kept if name not in ("minContains", "maxContains")}
    types = _types(kept)
    return {
        name: value
        for name, value in kept.items()
        if ONLY_OF.get(name) in (None, *types)
        and not (name in VACUOUS and VACUOUS[name](value, kept))
    }


def _types(schema: Keywords) -> set[str]:
    """Return the types that `type` allows; all if it is missing or malformed."""
    declared = schema.get("type")
    listed = declared if isinstance(declared, list) else [declared]
    names = {one for one in listed if isinstance(one, str)}
    return names if len(names) == len(listed) else TYPES


def _accepts_all(schema: Any) -> bool:
    return schema is True or (isinstance(schema, Mapping) and not ASSERTIONS & schema.keys())


def _accepts_nothing(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return schema is False
    return schema.get("enum") == [] or _accepts_all(schema.get("not"))


def _accepts_strings(schema: Any) -> bool:
    says_string = isinstance(schema, Mapping) and ASSERTIONS & schema.keys() == {"type"}
    return "string" in _types(schema) if says_string else _accepts_all(schema)


def _always(value: Any, schema: Keywords) -> bool:
    return True


def _is_zero(value: Any, schema: Keywords) -> bool:
    return type(value) in (int, float) and value == 0


def _is_open(value: Any, schema: Keywords) -> bool:
    return _accepts_all(value)


def _all_open(value: Any, schema: Keywords) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, list | Mapping) and all(map(_accepts_all, inner))


def _any_open(value: Any, schema: Keywords) -> bool:
    return isinstance(value, list) and any(map(_accepts_all, value))


def _one_open(value: Any, schema: Keywords) -> bool:
    if not isinstance(value, list):
        return False
    others = [one for one in value if not _accepts_all(one)]
    return len(others) == len(value) - 1 and all(map(_accepts_nothing, others))


def _needs_nothing(value: Any, schema: Keywords) -> bool:
    """Return whether no dependency bars a value: schemas accept all, names are required anyway."""
    required = schema.get("required")
    there = required if isinstance(required, list) else []
    return isinstance(value, Mapping) and all(
        all(one in [name, *there] for one in needs)
        if isinstance(needs, list)
        else _accepts_all(needs)
        for name, needs in value.items()
    )


def _needs_no_item(value: Any, schema: Keywords) -> bool:
    return _is_zero(schema.get("minContains"), schema) and "maxContains" not in schema


def _decides_nothing(value: Any, schema: Keywords) -> bool:
    """Return whether no branch of `if`, `then` and `else` that can apply bars a value."""
    condition = schema.get("if", True)
    return "if" not in schema or (
        (_accepts_all(schema.get("then", True)) or _accepts_nothing(condition))
        and (_accepts_all(schema.get("else", True)) or _accepts_all(condition))
    )


VACUOUS: Mapping[str, Callable[[Any, Keywords], bool]] = {
    **dict.fromkeys(("$dynamicAnchor", "$recursiveAnchor"), _always),
    **dict.fromkeys(("minItems", "minLength", "minProperties"), _is_zero),
    **dict.fromkeys(("additionalProperties", "items"), _is_open),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), _is_open),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), _needs_nothing),
    **dict.fromkeys(("else", "if", "then"), _decides_nothing),
    **{"allOf": _all_open, "anyOf": _any_open, "oneOf": _one_open, "contains": _needs_no_item},
    "$schema": lambda value, schema: _draft(schema) not in DRAFTS,
    "additionalItems": lambda value, schema: (
        not isinstance(schema.get("items"), list) or _accepts_all(value)
    ),
    "format": lambda value, schema: value not in FORMATS,
    "maxContains": lambda value, schema: "contains" not in schema,
    "minContains": lambda value, schema: "contains" not in schema or _needs_no_item(value, schema),
    "not": lambda value, schema: _accepts_nothing(value),
    "patternProperties": lambda value, schema: (
        _all_open(value, schema)
        and _accepts_all(schema.get("additionalProperties", True))
        and _accepts_all(schema.get("unevaluatedProperties", True))
    ),
    "propertyNames": lambda value, schema: _accepts_strings(value),
    "required": lambda value, schema: value in ([], False),
    "type": lambda value, schema: isinstance(value, list) and all(t in value for t in TYPES),
    "uniqueItems": lambda value, schema: value is False or schema.get("maxItems") in (0, 1),
}
"""Predicates per keyword: whether this value bars nothing, given the schema's other keywords."""
