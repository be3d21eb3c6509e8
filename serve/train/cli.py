"""The command eagle3-train: train EAGLE-3 drafts, and prepare training data."""

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from convert.command_line.parser import OneLineParser, add_about_flags
from convert.command_line.stopping import (
    Stopped,
    exit_at_once,
    exit_on_signals,
    raise_on_signals,
    status_of,
)
from serve.train.flags import DRAFT_EXAMPLE, add_commands

PROG = "eagle3-train"
FUNCTIONS = {
    "draft": "serve.train.draft:train_draft",
    "features": "serve.train.write_features:write_features",
    "regenerate": "serve.train.regenerate:regenerate",
}
"""Commands -> functions of the options, which return True if they finished."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, 2 for unusable flags or files, 130 or 143 after a signal."""
    parser = OneLineParser(prog=PROG, description=__doc__, example=DRAFT_EXAMPLE)
    add_about_flags(parser)
    add_commands(parser.add_subparsers(dest="command", required=True))
    return run_command(PROG, parser, argv, FUNCTIONS)


def run_command(
    prog: str,
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    functions: Mapping[str, str],
) -> int:
    """Parse a command line and run its command; return the exit status as `main`."""
    options = parser.parse_args(argv)
    with raise_on_signals() as came:
        try:
            if check := getattr(options, "check", None):
                check(options)
            # Check the flags first, because importing JAX takes seconds.
            with exit_on_signals(prog):
                command = _function(functions[options.command])
            done = command(options)
        except (ValueError, OSError) as error:
            print(f"{prog}: error: {error}", file=sys.stderr)
            return 2
        except Stopped as stopped:
            exit_at_once(prog, status_of(stopped))
    if not done:
        print(f"{prog}: stopped; the same command with --resume goes on", file=sys.stderr)
    return 0 if done else 128 + (came or [signal.SIGINT])[0]


def _function(place: str) -> Callable[[Any], bool]:
    """Return the function at "module:name"; ValueError without the extra `train`."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: it comes with the extra `train`") from error


if __name__ == "__main__":
    sys.exit(main())
