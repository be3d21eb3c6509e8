"""Tell target and draft apart before anything is downloaded or opened."""

from pathlib import Path

from rich.console import Console

from convert.files.json_object import parse_object
from convert.hub.checkpoint import find_config
from convert.hub.source import Source
from eagle3_jax.config.draft_layouts import refuse_draft
from eagle3_jax.config.targets import refuse_target, refuse_unsupported


def check_published_roles(
    target: Source, draft: Source | None, console: Console | None = None
) -> None:
    """Run `check_roles` on hub ids by config.json alone; raises as `find_checkpoint` too.

    A mistake is found before hours of downloading weights.
    """
    there = [source if source and source.here is None else None for source in (target, draft)]
    check_roles(*(source and find_config(source, console).parent for source in there))


def check_roles(target: Path | None, draft: Path | None) -> None:
    """Raise ValueError for swapped target and draft, or for a known unsupported model."""
    for directory, refuse in ((target, refuse_draft), (draft, refuse_target)):
        if directory is None:
            continue
        path = directory / "config.json"
        try:
            config = parse_object(path.read_bytes())
        except (OSError, ValueError):
            continue
        try:
            refuse_unsupported(config)
            refuse(config)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
