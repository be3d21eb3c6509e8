"""Find a checkpoint's directory, and download the checkpoint if it is a hub id.

Nothing of a repository is executed: configurations, tokenizers and templates are data. Cache and
environment are huggingface_hub's: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT.
"""

import logging
from pathlib import Path

from rich.console import Console

from convert.files.json_object import parse_object
from convert.hub.files import CHECKPOINT, CONFIG, CONFIG_ALONE, Wanted
from convert.hub.source import Source
from eagle3_jax.config.draft_layouts import refuse_draft
from eagle3_jax.config.targets import refuse_target, refuse_unsupported

_LOG = logging.getLogger(__name__)


def find_checkpoint(
    name: str | Path | Source,
    wanted: Wanted = CHECKPOINT,
    console: Console | None = None,
) -> Path:
    """Return the directory that holds the wanted files of a checkpoint.

    A directory is returned unchanged. A hub id's uncached files are downloaded, with progress on
    `console`, by default standard error. Raises FileNotFoundError or OSError, in one line, for a
    name that is neither; for a repository that is missing, gated, or not cached while offline; and
    for failures of network or disk.
    """
    source = name if isinstance(name, Source) else Source(name)
    if (directory := source.here) is not None:
        if source.revision:
            _LOG.warning("%s is a directory here; --revision is for the hub", source.name)
        return directory
    # Imported late: with its HTTP client it takes a third of a second.
    from convert.hub.download import download

    return download(source, wanted, console or Console(stderr=True))


def find_config(name: str | Path | Source, console: Console | None = None) -> Path:
    """Return a given config.json, or a checkpoint's alone; raises as `find_checkpoint`."""
    source = name if isinstance(name, Source) else Source(name)
    if Path(source.name).is_file():
        return Path(source.name)
    return find_checkpoint(source, CONFIG_ALONE, console) / CONFIG


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
