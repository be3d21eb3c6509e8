"""Parse JSON objects from files that may be damaged or hostile."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from eagle3_jax.config.published import brief

_DEEPEST = 100
"""Maximum nesting depth; published files have six levels."""


def parse_object(raw: bytes, *, unique_names: bool = False) -> dict[str, Any]:
    """Parse a JSON object in UTF-8.

    Raises ValueError for anything else, for too deep nesting and, with `unique_names`, for an
    object that repeats a name.
    """
    value = parse_value(raw.decode("utf-8"), object_pairs_hook=_unique if unique_names else None)
    if not isinstance(value, dict):
        raise ValueError(f"it must be an object, got {brief(value)}")
    return value


def parse_value(text: str, **options: Any) -> Any:
    """Parse a JSON value; ValueError if it is not JSON or nested too deeply."""
    try:
        value = json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _deeper_than(_DEEPEST, value):
        raise ValueError("it is nested too deeply")
    return value


Checks = Mapping[str, tuple[Callable[[Any], bool], str]]
"""Known fields of an object, each with a check of its value and a description of allowed ones."""


def parse_flag(flag: str, text: str, checks: Checks) -> dict[str, Any]:
    """Parse the JSON object that a flag takes; ValueError like `check_fields`."""
    try:
        given = parse_value(text)
    except ValueError as error:
        raise ValueError(f"{flag} is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"{flag} must be a JSON object; got {brief(given)}")
    return check_fields(flag, given, checks)


def check_fields(where: str, given: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
    """Return the fields that are not null.

    Raises ValueError that names `where` and the field that is unknown or has another value.
    """
    if unknown := sorted(given.keys() - checks.keys()):
        raise ValueError(f"{where}: unknown fields {unknown}; there are {', '.join(checks)}")
    fields = {name: value for name, value in given.items() if value is not None}
    for name, value in fields.items():
        allowed, expected = checks[name]
        if not allowed(value):
            raise ValueError(f"{where} {name} must be {expected}; got {brief(value)}")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = [name for name, count in counts.items() if count > 1]
        raise ValueError(f"duplicate names {brief(twice)}")
    return entries


def _deeper_than(depth: int, value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(depth):
        level = [inner for outer in level for inner in _children(outer)]
    return bool(level)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
