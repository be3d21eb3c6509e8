"""Find a checkpoint: its directory, or the one that holds what was downloaded of its repository.

Nothing of a repository is executed: configurations, tokenizers and templates are data. Caches and
environment are huggingface_hub's own: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT.
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
    """The directory that holds the files of a checkpoint that are wanted.

    name: a directory, which is returned as it is, or a hub id, of which the files that are not in
    the cache are downloaded. console: shows how far that is, by default standard error. Raises
    FileNotFoundError or OSError, in one line, for what is neither, for a repository that is
    missing, gated or not in the cache while offline, and where network or disk fail.
    """
    source = name if isinstance(name, Source) else Source(name)
    if (directory := source.here) is not None:
        if source.revision:
            _LOG.warning("%s is a directory here; --revision is for the hub", source.name)
        return directory
    # Only now: with its HTTP client it takes a third of a second to import.
    from convert.hub.problems import explained

    try:
        return _download(source, wanted, console or Console(stderr=True))
    except _NoRoom:
        raise
    except Exception as error:  # The library promises types for answers, not for connections.
        raise explained(error, source) from error


def find_config(name: str | Path | Source, console: Console | None = None) -> Path:
    """A config.json: given itself, or of a checkpoint, of which nothing else is downloaded; raises
    as `find_checkpoint`."""
    source = name if isinstance(name, Source) else Source(name)
    if Path(source.name).is_file():
        return Path(source.name)
    return find_checkpoint(source, CONFIG_ALONE, console) / CONFIG


class _NoRoom(OSError):
    """The disk is too small for what is still to be downloaded."""


def _download(source: Source, wanted: Wanted, console: Console) -> Path:
    from convert.hub.progress import Silent, bars_of, stopped_by_signal

    small = {"allow_patterns": list(wanted.small), "ignore_patterns": wanted.not_small}
    directory = Path(_snapshot(source, revision=source.revision, tqdm_class=Silent, **small))
    names = weight_files(directory) if wanted.weights else []
    if all((directory / name).is_file() for name in names):
        return directory
    # The commit that the small files are of: the branch may have moved since.
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
    """Raises _NoRoom where the disk can't take so many bytes."""
    from convert.hub.problems import ELSEWHERE, cache_of

    cache = cache_of(source)
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise _NoRoom(
            f"{source}: {needed / GIB:.2f} GiB are still to be downloaded, and the disk of {cache} "
            f"has {free / GIB:.2f} GiB free; {ELSEWHERE}"
        )
