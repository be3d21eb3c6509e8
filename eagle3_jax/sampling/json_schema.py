"""The structure of JSON schemas: keywords that hold subschemas, and keywords that bar values."""

from collections.abc import Iterator, Mapping
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
