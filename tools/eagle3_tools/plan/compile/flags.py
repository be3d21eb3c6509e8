"""Flags of the modules that compile full-size programs of published checkpoints."""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from convert.command_line.parser import OneLineParser


def read_flags(
    name: str, description: str | None, limit_s: float, argv: Sequence[str] | None
) -> Namespace:
    """Return `folder` and `limit`; end the process with status 2 and one line for bad values.

    Args:
        name: Name of the module in this package.
        description: Shown by `--help`.
        limit_s: Default of `--limit`.
        argv: None for those of the process.
    """
    parser = OneLineParser(
        prog=f"python -m eagle3_tools.plan.compile.{name}", description=description
    )
    parser.add_argument("folder", type=directory)
    parser.add_argument(
        "--limit", type=seconds, default=limit_s, metavar="S", help="for one program"
    )
    return parser.parse_args(argv)


def directory(text: str) -> Path:
    """Return the path of an existing directory."""
    if not (path := Path(text)).is_dir():
        raise ArgumentTypeError(f"must be a directory; got {text!r:.300}")
    return path


def seconds(text: str) -> float:
    """Return a time above 0."""
    if not (number := float(text)) > 0:
        raise ArgumentTypeError(f"must be above 0; got {text}")
    return number


def whole(text: str) -> int:
    """Return a whole number of at least 1."""
    if (number := int(text)) < 1:
        raise ArgumentTypeError(f"must be at least 1; got {text}")
    return number
