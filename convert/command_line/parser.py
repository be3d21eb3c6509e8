"""The argument parser of all commands: one-line errors, defaults in the help, shell completion."""

import argparse
import math
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, NoReturn

UNSTATED = (None, argparse.SUPPRESS, "", [], ())
"""Defaults that the help does not mention."""


PRINT_COMPLETION = "--print-completion"
SHELLS = ("bash", "zsh", "tcsh")


class OneLineParser(argparse.ArgumentParser):
    """A parser with one-line errors and suggestions, an example in the help, no abbreviations."""

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, formatter_class=_WithDefaults, **kwargs)
        self.example = example

    def format_help(self) -> str:
        """Return the help, with the example as one line to copy."""
        shown = f"\nexample:\n  {self.example}\n" if self.example else ""
        return super().format_help() + shown

    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Exit for flags unknown to this parser, even if its parent parser knows them."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            meant = did_you_mean(flags[0], self._option_string_actions) if flags else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found, unknown

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Return a flag's value, and reject numbers that are infinite, NaN or overflow a float."""
        try:
            value = super()._get_value(action, arg_string)  # type: ignore[misc]
        except OverflowError:
            value = math.inf
        numbers = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, float) and not math.isfinite(one) for one in numbers):
            raise argparse.ArgumentError(action, f"must be finite; got {arg_string!r:.100}")
        return value

    def error(self, message: str) -> NoReturn:
        """Print the message in one line and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a suggestion to append to an error, or "" if no known name is similar."""
    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def stated_default(action: argparse.Action) -> str:
    """Return the text on a flag's default that its help lacks; switches are off by default."""
    switch = isinstance(action.default, bool)
    if switch or action.default in UNSTATED or "default" in (action.help or ""):
        return ""
    several = isinstance(action.default, list | tuple)
    value = " ".join(map(str, action.default)) if several else str(action.default)
    return f"default {value}"


class _WithDefaults(argparse.HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str:
        default = stated_default(action).replace("%", "%%") if action.option_strings else ""
        return "; ".join(filter(None, (action.help, default)))


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
