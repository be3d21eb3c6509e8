"""Get the real parser of a command by running the command until it parses its flags."""

import tomllib
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

MODULES = (
    *("convert.equivalence", "eagle3_tools.make_demo"),
    *("eagle3_tools.kernel_bench", "eagle3_tools.aot"),
)
"""Modules with flags that are run as `python -P -m NAME`."""


class Reached(BaseException):
    """Raised when a command parses its flags; not an Exception, so that no command handles it."""

    def __init__(self, parser: ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def entry_points(root: Path) -> dict[str, str]:
    """Map commands to "module:function": scripts of the product and of tools/, then MODULES."""
    scripts: dict[str, str] = {}
    for folder in (root, root / "tools"):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        scripts |= project["project"]["scripts"]
    return scripts | {f"python -P -m {name}": f"{name}.__main__:main" for name in MODULES}


def parser_of(entry_point: str) -> ArgumentParser:
    return _run(entry_point, [], parse=False)


def check_flags(entry_point: str, argv: Sequence[str]) -> None:
    """Parse a command line as the command does, without running the command.

    Raises SystemExit, as the parser does, if the command would refuse it.
    """
    _run(entry_point, argv, parse=True)


def _run(entry_point: str, argv: Sequence[str], *, parse: bool) -> ArgumentParser:
    module, _, function = entry_point.partition(":")
    main = getattr(import_module(module), function)
    original = ArgumentParser.parse_args

    def parse_args(self: ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        if parse:
            original(self, args, namespace)
        raise Reached(self)

    with patch.object(ArgumentParser, "parse_args", parse_args):
        try:
            main(list(argv))
        except Reached as reached:
            return reached.parser
    raise AssertionError(f"{entry_point} reads no flags")
