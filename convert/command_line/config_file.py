"""Read flags from a YAML file in vLLM's form (--config FILE): keys are flags without dashes."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from convert.command_line.parser import did_you_mean

FLAG = "--config"


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add the --config flag to a command."""
    parser.add_argument(
        FLAG, type=Path, metavar="FILE", help="YAML: flags as keys; the command line goes before it"
    )


def flags_in_file(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """Return a YAML file's flags as words; OSError, or ValueError that names file and key."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if given is None:
        return []
    if not isinstance(given, dict):
        raise ValueError(f"{path} must hold flags as keys, such as `port: 8000`")
    words: list[str] = []
    for key, value in given.items():
        try:
            words += _flag(path, parser, key, value)
        except (TypeError, RecursionError) as error:
            message = f"{path}: the key {key!r} must have a value that JSON can hold"
            raise ValueError(message) from error
    return words


def _flag(path: Path, parser: argparse.ArgumentParser, key: Any, value: Any) -> Iterator[str]:
    name = f"--{key}".replace("_", "-")
    known = {option for option in parser._option_string_actions if option.startswith("--")}
    if name == FLAG or name not in known:
        near = did_you_mean(name, known).replace("--", "")
        raise ValueError(f"{path}: there is no flag for the key {key!r}{near}")
    action = parser._option_string_actions[name]
    if action.nargs == 0:
        yield from _switch(path, action, name, value)
    elif value is None:
        raise ValueError(f"{path}: the key {key!r} has no value")
    elif isinstance(value, list) and action.nargs in ("+", "*"):
        yield from (name, *map(_text, value))
    else:
        yield f"{name}={_text(value)}"


def _switch(path: Path, action: argparse.Action, name: str, value: Any) -> Iterator[str]:
    """Yield the word of a switch that is true, or its negated form if it has one and is false."""
    if not isinstance(value, bool):
        raise ValueError(f"{path}: the key {name[2:]!r} must be true or false; got {value!r}")
    if value:
        yield name
    elif isinstance(action, argparse.BooleanOptionalAction):
        yield next(other for other in action.option_strings if _is_no(other) != _is_no(name))


def _is_no(name: str) -> bool:
    return name.startswith("--no-")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
