"""The generated pages of docs/reference, from a checkout: `python -m serve.reference`."""

from collections.abc import Callable
from pathlib import Path

from serve.reference.commands import commands_page
from serve.reference.python_api import python_page

ROOT = Path(__file__).parents[2]
PAGES: dict[str, Callable[[Path], str]] = {
    "docs/reference/cli.md": commands_page,
    "docs/reference/python.md": python_page,
}
