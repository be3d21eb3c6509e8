"""Generator of the pages in docs/reference, run from a checkout: `python -m docs.generator`."""

from collections.abc import Callable
from pathlib import Path

from eagle3_tools.reference.commands import commands_page
from eagle3_tools.reference.kernel_changes import kernel_changes_page
from eagle3_tools.reference.python_api import python_page
from eagle3_tools.reference.request_options import options_page

ROOT = Path(__file__).parents[3]
PAGES: dict[str, Callable[[Path], str]] = {
    "docs/reference/cli.md": commands_page,
    "docs/reference/kernel-changes.md": kernel_changes_page,
    "docs/reference/python.md": python_page,
    "docs/reference/request-options.md": options_page,
}


def main() -> None:
    """Write each page of `PAGES` and print its name."""
    for name, write in PAGES.items():
        path = ROOT / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(write(ROOT), encoding="utf-8")
        print(f"wrote {name}")
