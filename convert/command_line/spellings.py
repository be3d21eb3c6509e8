"""Accept vLLM's spellings: `--max_model_len` and `--speculative-config.model DIR`."""

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from convert.command_line.config_file import flags_in_file
from convert.files.json_object import parse_value

T = TypeVar("T")

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
