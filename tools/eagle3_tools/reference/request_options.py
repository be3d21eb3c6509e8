"""Generate docs/reference/request-options.md from the table of request options."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eagle3_jax.sampling.params import REQUEST_OPTIONS
from eagle3_tools.reference.commands import escape, markdown_table

HEAD = """# Request options

Made by `python -m docs.generator` from `eagle3_jax/sampling/params.py`; a test compares them.
`docs/request-options.md` says how they act together, and how bodies spell those that have a form
of their own.

"""
COLUMNS = (
    "option",
    "in bodies and flags",
    "default",
    "must be",
    "meaning",
    "applied by",
    "in `generation_config.json`",
)


def options_page(root: Path) -> str:
    """Return the page; `root` is unused."""
    rows: list[Iterable[str]] = [COLUMNS]
    for name, row in REQUEST_OPTIONS.items():
        cells = [
            f"`{name}`",
            "own form" if row.json is None else f"`{_json(row.json)}`",
            f"`{row.off[0]!r}`",
            row.expected,
            row.meaning,
            row.applied_by.value,
            f"`{row.generation_config}`" if row.generation_config else "",
        ]
        rows.append(map(escape, cells))
    return HEAD + "\n".join(markdown_table(*rows)) + "\n"


def _json(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
