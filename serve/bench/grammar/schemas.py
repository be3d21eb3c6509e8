"""Whether values fit the schemas that are measured, said independently of who made them."""

from typing import Any


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is one of these schemas': only their keywords are known."""
    if "enum" in schema:
        return value in schema["enum"]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if type(value) is not kinds[schema["type"]]:
        return False
    if isinstance(value, dict):
        properties = schema["properties"]
        return set(value) == set(properties) and all(
            fits(value[name], inner) for name, inner in properties.items()
        )
    if isinstance(value, list):
        fitting = all(fits(item, schema["items"]) for item in value)
        return fitting and schema.get("minItems", 0) <= len(value) <= schema["maxItems"]
    if isinstance(value, str):
        return schema["minLength"] <= len(value) <= schema["maxLength"]
    return isinstance(value, bool) or schema["minimum"] <= value <= schema["maximum"]
