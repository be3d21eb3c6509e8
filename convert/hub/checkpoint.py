"""Find a checkpoint's directory, and download the checkpoint if it is a hub id.

Nothing of a repository is executed: configurations, tokenizers and templates are data. Cache and
environment are huggingface_hub's: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT.
"""

import logging
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from convert.conversion.progress import ByteProgress
from convert.device_memory import GIB
from convert.hub.files import CHECKPOINT, CONFIG, CONFIG_ALONE, Wanted, weight_files
from convert.hub.source import Source

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
    from convert.hub.problems import explained

    try:
        return _download(source, wanted, console or Console(stderr=True))
    except _NoRoom:
        raise
    except Exception as error:  # The library promises types for answers, not for connections.
        raise explained(error, source) from error


def find_config(name: str | Path | Source, console: Console | None = None) -> Path:
    """Return a given config.json, or a checkpoint's alone; raises as `find_checkpoint`."""
    source = name if isinstance(name, Source) else Source(name)
    if Path(source.name).is_file():
        return Path(source.name)
    return find_checkpoint(source, CONFIG_ALONE, console) / CONFIG


class _NoRoom(OSError):
    """The disk is too small for the remaining download."""


def _download(source: Source, wanted: Wanted, console: Console) -> Path:
    from convert.hub.progress import Silent, bars_of, stopped_by_signal

    small = {"allow_patterns": list(wanted.small), "ignore_patterns": wanted.not_small}
    directory = Path(_snapshot(source, revision=source.revision, tqdm_class=Silent, **small))
    names = weight_files(directory) if wanted.weights else []
    if all((directory / name).is_file() for name in names):
        return directory
    # Use the commit of the small files: the branch may have moved since.
    weights = {"revision": directory.name, "allow_patterns": names}
    files = _snapshot(source, dry_run=True, tqdm_class=Silent, **weights)
    missing = [file for file in files if file.will_download]
    needed = sum(file.file_size or 0 for file in missing)
    _check_room(source, needed)
    what = f"downloading {source}"
    console.print(f"{what}: {len(missing)} files, {needed / GIB:.2f} GiB", highlight=False)
    with ByteProgress(console, what, needed) as progress, stopped_by_signal() as stopped:
        _snapshot(source, tqdm_class=bars_of(progress, stopped), **weights)
    return directory


def _snapshot(source: Source, **how: Any) -> Any:
    from huggingface_hub import snapshot_download

    ours = {"library_name": "eagle3-jax", "library_version": version("eagle3-jax")}
    return snapshot_download(str(source.name), cache_dir=source.cache, **ours, **how)


def _check_room(source: Source, needed: int) -> None:
    """Raise _NoRoom if the cache's disk has fewer than `needed` bytes free."""
    from convert.hub.problems import ELSEWHERE, cache_of

    cache = cache_of(source)
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise _NoRoom(
            f"{source}: {needed / GIB:.2f} GiB are still to be downloaded, and the disk of {cache} "
            f"has {free / GIB:.2f} GiB free; {ELSEWHERE}"
        )
