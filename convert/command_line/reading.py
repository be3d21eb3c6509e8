"""Read a command line over the flags of a YAML file, both in vLLM's spellings.

Keys of --config FILE are flags without dashes. `--max_model_len` and `--speculative-config.model
DIR` are accepted.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from convert.command_line.parser import did_you_mean
from convert.files.json_object import parse_value

T = TypeVar("T")

FLAG = "--config"
DOTTED = (
    *("--speculative-config", "--kv-events-config"),
    *("--limit-mm-per-prompt", "--media-io-kwargs"),
)


def read_command(
    parser: argparse.ArgumentParser, argv: Sequence[str], read: Callable[[argparse.Namespace], T]
) -> T:
    """Parse a command line over the --config file's flags, and `read` it; exit for errors."""
    try:
        joined = join_dotted([_with_dashes(argument) for argument in argv])
        flags = parser.parse_args(joined)
        if path := getattr(flags, "config", None):
            below = parser.parse_args(flags_in_file(path, parser))
            flags = parser.parse_args(joined, below)
        return read(flags)
    except (OSError, ValueError, OverflowError) as error:
        parser.error(str(error))


def _with_dashes(argument: str) -> str:
    """Return `--max_model_len=9` as `--max-model-len=9`, because both spellings are in use."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def join_dotted(argv: Sequence[str]) -> list[str]:
    """Join each flag's dotted keys into a JSON object; ValueError for duplicates or no value."""
    kept: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        flag, dot, key = name.partition(".")
        if not dot or flag not in DOTTED:
            kept.append(word)
            continue
        value = value if equals else next(words, None)
        if value is None:
            raise ValueError(f"{name} needs a value")
        found.setdefault(flag, {})[key.replace("-", "_")] = _read(value)
    for flag, config in found.items():
        if any(word.partition("=")[0] == flag for word in kept):
            raise ValueError(f"give {flag} as one JSON object or key by key, not both")
        kept += [flag, json.dumps(config)]
    return kept


def _read(text: str) -> Any:
    """Parse JSON, or return the text itself, so that directory names need no quotes."""
    try:
        return parse_value(text)
    except ValueError:
        return text


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add the --config flag to a command."""
    parser.add_argument(
        FLAG,
        type=Path,
        metavar="FILE",
        help="YAML file with flags as keys; flags on the command line take precedence",
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
