"""Prints what users can name: each command's flags, then each endpoint; for `diff` between commits.

python tests/serve/surface.py > after.txt
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from docs.generator.parsers import entry_points, parser_of  # noqa: E402


def flags_of(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """A line for each flag, its aliases together, with what it takes; subcommands behind."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub, below in action.choices.items():
                yield from flags_of(f"{name} {sub}", below)
            continue
        names = " ".join(sorted(action.option_strings)) or action.metavar or action.dest
        takes = "" if action.choices is None else f" of {'|'.join(map(str, action.choices))}"
        count = "" if action.nargs is None else f" nargs={action.nargs}"
        hidden = " (hidden)" if action.help == argparse.SUPPRESS else ""
        yield f"{name}: {names}{takes}{count}{hidden}"


def endpoints() -> Iterator[str]:
    """A line for each path with its methods."""
    from fake_engine import FakeEngine
    from fake_server import build_service

    from serve.app import create_app

    for route in flattened(create_app(build_service(FakeEngine())).routes):
        yield f"endpoint: {route.path} {','.join(sorted(route.methods))}"


def flattened(routes: Iterable[Any]) -> Iterator[Any]:
    """The routes, those of included routers too."""
    for route in routes:
        included = getattr(route, "original_router", None)
        yield from (route,) if included is None else flattened(included.routes)


def main() -> None:
    """Sorted, so that the order of registration does not show."""
    lines: list[str] = []
    with redirect_stdout(StringIO()):
        for name, entry_point in entry_points(ROOT).items():
            lines += flags_of(name, parser_of(entry_point))
        lines += endpoints()
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
