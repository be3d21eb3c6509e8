"""Fields and their values, read from the types of a client's package."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints


def members(union: Any) -> list[Any]:
    """The typed dictionaries of a union, or the only one."""
    return [member for member in get_args(union) if isinstance(member, type)] or [union]


def names(*unions: Any, **module: Any) -> set[str]:
    """The fields of typed dictionaries; module: names that their annotations use."""
    found = (get_type_hints(one, module) for union in unions for one in members(union))
    return {name for hints in found for name in hints}


def literals(hint: Any) -> Iterator[Any]:
    """The values that an annotation lists, wherever in it."""
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from literals(part)


def kinds(union: Any, **module: Any) -> set[Any]:
    """The values that the fields `type` of a union's members may have."""
    hints = (get_type_hints(member, module).get("type") for member in members(union))
    return {value for hint in hints for value in literals(hint)}
