"""Checks shared by all readers of a published config.json, and short values for their errors."""

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 8
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def brief(value: Any) -> str:
    """Return the value's repr, truncated if it is long or deeply nested."""
    return _REPR.repr(value)


_LARGEST = 2**31 - 1


def require_values(config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise ValueError naming every field whose value is not allowed.

    Null counts as absent and is always allowed. An empty tuple in `allowed` permits only null.
    """
    wrong = [
        f"{name} must be {' or '.join(map(repr, values)) or 'null'}, got {brief(config[name])}"
        for name, values in allowed.items()
        if config.get(name) is not None and config[name] not in values
    ]
    if wrong:
        raise ValueError("this configuration is not supported: " + "; ".join(wrong))


def require_keys(config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise ValueError naming every field that is missing or null."""
    missing = [name for name in names if config.get(name) is None]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")


def read_sizes(
    config: Mapping[str, Any], names: Iterable[str], *, least: int = 1
) -> dict[str, int]:
    """Read required integers of at least `least`; raise ValueError otherwise."""
    names = tuple(names)
    require_keys(config, names)
    for name in names:
        value = config[name]
        if type(value) is not int or not least <= value <= _LARGEST:
            raise ValueError(f"{name} must be an integer of at least {least}, got {brief(value)}")
    return {name: config[name] for name in names}


def read_mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Read a nested object, empty if absent or null; raise ValueError for other values."""
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {brief(value)}")
    return value or {}


def read_ids(config: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """Read one integer or a list, or None if absent or null; raise ValueError otherwise."""
    value = config.get(name)
    if value is None:
        return None
    ids = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(type(i) is int and abs(i) <= _LARGEST for i in ids):
        raise ValueError(f"{name} must be a list of integers, got {brief(value)}")
    return ids


def read_number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Read a finite, non-negative number; raise ValueError otherwise."""
    value: Any = default if config.get(name) is None else config[name]
    if type(value) not in (int, float) or not 0 <= value <= 1e30:
        raise ValueError(f"{name} must be a number of at least 0, got {brief(value)}")
    return float(value)
