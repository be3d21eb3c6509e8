"""The command eagle3-train: train EAGLE-3 drafts and small targets, and prepare training data."""

import signal
import sys
from collections.abc import Callable, Sequence
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


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, 2 for unusable flags or files, 130 or 143 after a signal."""
    options = _parser().parse_args(argv)
    with raise_on_signals() as came:
        try:
            if check := getattr(options, "check", None):
                check(options)
            # Check the flags first, because importing JAX takes seconds.
            with exit_on_signals(PROG):
                command = _command(options.command)
            done = command(options)
        except (ValueError, OSError) as error:
            print(f"{PROG}: error: {error}", file=sys.stderr)
            return 2
        except Stopped as stopped:
            exit_at_once(PROG, status_of(stopped))
    if not done:
        print(f"{PROG}: stopped; the same command with --resume goes on", file=sys.stderr)
    return 0 if done else 128 + (came or [signal.SIGINT])[0]


def _command(name: str) -> Callable[[Any], bool]:
    """Return a command's function, True if it finished; ValueError without the extra `train`."""
    try:
        if name == "target":
            from serve.train.target import train_target

            return train_target
        if name == "features":
            from serve.train.write_features import write_features

            return write_features
        if name == "regenerate":
            from serve.train.regenerate import regenerate

            return regenerate
        if name == "vision":
            from serve.train.vision import train_vision

            return train_vision
        from serve.train.draft import train_draft

        return train_draft
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is missing: it comes with the extra `train`") from error


def _parser() -> OneLineParser:
    parser = OneLineParser(prog=PROG, description=__doc__, example=DRAFT_EXAMPLE)
    add_about_flags(parser)
    add_commands(parser.add_subparsers(dest="command", required=True))
    return parser


if __name__ == "__main__":
    sys.exit(main())
