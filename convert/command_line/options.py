"""Options as rows of tables, from which a command's parser, --config, errors and reference follow.

A table is a dataclass; each of its fields that `option` declares is a row. To add an option, add a
row and the code that obeys it.
"""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from convert.files.json_object import parse_value

Parse = Callable[[str], Any]


@dataclass(frozen=True)
class Option:
    """Flags of an option (none if it is positional), and the other arguments of `add_argument`."""

    names: tuple[str, ...]
    arguments: Mapping[str, Any]


def option(
    written: str,
    meaning: str | None = None,
    parse: Parse | None = None,
    *,
    default: Any = None,
    unset: bool = False,
    unit: int | None = None,
    **more: Any,
) -> Any:
    """Declare an option as a field of a table.

    Args:
        written: Flags and the value's placeholder as the help shows them, such as "--port, -p N".
            Without flags the option is positional; without value it is a switch, off by default.
        meaning: Help text; None hides the option from the help.
        parse: Converts the text of a value; raises ArgumentTypeError or ValueError, which argparse
            reports with the flag's name.
        default: Value of an option that is not given.
        unset: Leave None in the parsed flags unless the option is given.
        unit: The flag counts units of this size; the value is a whole number of ones.
        more: Other arguments of `add_argument`.
    """
    words = written.split()
    names = tuple(word.rstrip(",") for word in words if word.startswith("-"))
    arguments = {"help": argparse.SUPPRESS if meaning is None else meaning, **more}
    if len(words) > len(names):
        arguments["metavar"] = words[-1]
    elif not {"action", "choices"} & more.keys():
        arguments["action"], default = "store_true", False
    if unit is not None:
        arguments["type"] = _in_units(parse or POSITIVE, unit)
    elif parse is not None:
        arguments["type"] = parse
    # argparse parses a default that is a text, so the help states it in units.
    stated = str(default / unit) if unit and default is not None else default
    arguments["default"] = None if unset else stated
    row = {"option": Option(names, arguments)}
    if isinstance(default, Mapping):  # dataclasses refuse one as `default`
        return field(default_factory=lambda: default, metadata=row)
    return field(default=default, metadata=row)


def options_of(table: type) -> dict[str, Option]:
    """Return the rows of a table by name."""
    rows = {row.name: row.metadata.get("option") for row in fields(table)}
    return {name: row for name, row in rows.items() if row is not None}


def flags_of(*tables: type) -> dict[str, str]:
    """Return the first flag of each option of some tables, by name."""
    rows = {name: row for table in tables for name, row in options_of(table).items()}
    return {name: row.names[0] for name, row in rows.items() if row.names}


def add_options(parser: Any, table: type, *names: str) -> None:
    """Add a table's options, or only those in `names`, to a parser or to a group of one."""
    rows = options_of(table)
    for name in names or rows:
        row = rows[name]
        if row.names:
            parser.add_argument(*row.names, **{"dest": name, **row.arguments})
        else:
            parser.add_argument(name, **row.arguments)


def values_of(table: type, flags: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a table's options that are not None, lists as tuples."""
    found = {name: getattr(flags, name, None) for name in options_of(table)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in found.items()
        if value is not None
    }


def number(kind: type, expected: str, holds: Callable[[Any], bool]) -> Parse:
    """Return a parser of finite numbers for which `holds`; `expected` describes them in errors."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and holds(value)):
            raise argparse.ArgumentTypeError(f"must be {expected}; got {text:.100}")
        return value

    return parse


COUNT = number(int, "a whole number, 1 or more", lambda value: value >= 1)
COUNT_OR_0 = number(int, "a whole number, 0 or more", lambda value: value >= 0)
POSITIVE = number(float, "a number above 0", lambda value: value > 0)
POSITIVE_OR_0 = number(float, "a number, 0 or more", lambda value: value >= 0)
SHARE = number(float, "above 0 and at most 1", lambda value: 0 < value <= 1)


def json_object(text: str) -> dict[str, Any]:
    try:
        value = parse_value(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object; got {text:.100}")
    return value


def _in_units(parse: Parse, unit: int) -> Parse:
    return lambda text: int(parse(text) * unit)
