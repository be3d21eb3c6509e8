"""Flags for a command's version and its shell completion."""

import argparse
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

PRINT_COMPLETION = "--print-completion"
SHELLS = ("bash", "zsh", "tcsh")


def add_about_flags(parser: argparse.ArgumentParser) -> None:
    """Add the --version and --print-completion flags to a command."""
    parser.add_argument("--version", action="version", version=version("eagle3-jax"))
    parser.add_argument(
        PRINT_COMPLETION,
        action=_PrintCompletion,
        choices=SHELLS,
        help="print a script that completes the command's flags, and end",
    )


class _PrintCompletion(argparse.Action):
    """The action of --print-completion, which prints the script and exits.

    shtab is imported only when it is needed.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        import shtab

        _complete_paths(parser, {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY})
        print(shtab.complete(parser, values))
        parser.exit()


def _complete_paths(parser: argparse.ArgumentParser, kinds: Mapping[str, Any]) -> None:
    """Mark the arguments that take a path, recognised by the name of their value in the help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_paths(command, kinds)
        called = re.sub("MODEL|DRAFT|FOLDER|PATH|SRC|DST", "DIR", f"{action.metavar}")
        for kind, completer in kinds.items():
            if kind in called:
                action.complete = completer  # type: ignore[attr-defined]
