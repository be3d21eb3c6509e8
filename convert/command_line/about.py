"""Flags that every command has about itself: its version, and how a shell completes it."""

import argparse
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

PRINT_COMPLETION = "--print-completion"
SHELLS = ("bash", "zsh", "tcsh")


def add_about_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them to a command."""
    parser.add_argument("--version", action="version", version=version("eagle3-jax"))
    parser.add_argument(
        PRINT_COMPLETION,
        action=_PrintCompletion,
        choices=SHELLS,
        help="print a script that completes the command's flags, and end",
    )


class _PrintCompletion(argparse.Action):
    """Prints the script and ends; what it takes to write one is imported for that alone."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        import shtab

        _complete_paths(parser, {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY})
        print(shtab.complete(parser, values))
        parser.exit()


def _complete_paths(parser: argparse.ArgumentParser, kinds: Mapping[str, Any]) -> None:
    """Marks what takes a path, by what help calls its value."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_paths(command, kinds)
        called = re.sub("MODEL|DRAFT|FOLDER|PATH|SRC|DST", "DIR", f"{action.metavar}")
        for kind, completer in kinds.items():
            if kind in called:
                action.complete = completer  # type: ignore[attr-defined]
