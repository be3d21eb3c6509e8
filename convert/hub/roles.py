"""Target and draft, told apart before anything of them is downloaded or looked for."""

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
    """`check_roles` of what is not here yet, by the configurations alone: weights can take hours.
    Raises as `find_checkpoint` too."""
    there = [source if source and source.here is None else None for source in (target, draft)]
    check_roles(*(source and find_config(source, console).parent for source in there))


def check_roles(target: Path | None, draft: Path | None) -> None:
    """Raises ValueError for a directory that is the other one, and for a model by name that is not
    supported; what is wrong with its config.json otherwise its reader says."""
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
