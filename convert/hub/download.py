"""Download a checkpoint, with our own progress, and failures in one line with a remedy."""

import errno
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from threading import Event, Lock, current_thread, main_thread
from types import FrameType
from typing import Any

from huggingface_hub import constants, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm
from rich.console import Console

from convert.command_line.progress import ByteProgress
from convert.command_line.stopping import SIGNALS
from convert.device_memory import GIB
from convert.hub.files import NOT_SMALL, Wanted, weight_files
from convert.hub.source import Source

BYTES = "huggingface_hub.snapshot_download"
"""The library's name of the bar that counts bytes on disk."""
FULL = (errno.ENOSPC, errno.EDQUOT)
ELSEWHERE = "--download-dir or HF_HOME names another directory"


class _NoRoom(OSError):
    """The disk is too small for the remaining download."""


def download(source: Source, wanted: Wanted, console: Console) -> Path:
    """Return the directory of the wanted files; OSError, in one line, for failures."""
    try:
        return _download(source, wanted, console)
    except _NoRoom:
        raise
    except Exception as error:  # The library promises types for answers, not for connections.
        raise _explained(error, source) from error


def _download(source: Source, wanted: Wanted, console: Console) -> Path:
    small = {"allow_patterns": list(wanted.small), "ignore_patterns": NOT_SMALL}
    directory = Path(_snapshot(source, revision=source.revision, tqdm_class=_Silent, **small))
    names = weight_files(directory) if wanted.weights else []
    if all((directory / name).is_file() for name in names):
        return directory
    # Use the commit of the small files: the branch may have moved since.
    weights = {"revision": directory.name, "allow_patterns": names}
    files = _snapshot(source, dry_run=True, tqdm_class=_Silent, **weights)
    missing = [file for file in files if file.will_download]
    needed = sum(file.file_size or 0 for file in missing)
    _check_room(source, needed)
    what = f"downloading {source}"
    console.print(f"{what}: {len(missing)} files, {needed / GIB:.2f} GiB", highlight=False)
    with ByteProgress(console, what, needed) as progress, _stopped_by_signal() as stopped:
        _snapshot(source, tqdm_class=_bars_of(progress, stopped), **weights)
    return directory


def _snapshot(source: Source, **how: Any) -> Any:
    ours = {"library_name": "eagle3-jax", "library_version": version("eagle3-jax")}
    return snapshot_download(str(source.name), cache_dir=source.cache, **ours, **how)


def _check_room(source: Source, needed: int) -> None:
    """Raise _NoRoom if the cache's disk has fewer than `needed` bytes free."""
    cache = _cache_of(source)
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise _NoRoom(
            f"{source}: {needed / GIB:.2f} GiB are still to be downloaded, and the disk of {cache} "
            f"has {free / GIB:.2f} GiB free; {ELSEWHERE}"
        )


class _Silent(tqdm):
    """A bar that shows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


@contextmanager
def _stopped_by_signal() -> Iterator[Event]:
    """Yield an event that Ctrl-C and SIGTERM set before their previous handlers run."""
    stopped = Event()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    # A signal without a Python handler ends the process by itself.
    handled = {number: handler for number, handler in before.items() if callable(handler)}

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()
        handled[number](number, frame)

    if current_thread() is not main_thread():
        handled.clear()
    for number in handled:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


def _bars_of(progress: ByteProgress, stopped: Event) -> type[_Silent]:
    """Return a class of bars that add the library's byte counts to `progress`.

    Once `stopped` is set, they end the library's threads: it waits for them, for up to an hour a
    file.
    """
    # The library downloads several files at a time in threads.
    lock = Lock()

    class Bars(_Silent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("name") == BYTES
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts:
                if stopped.is_set():
                    raise InterruptedError("interrupted")
                with lock:
                    progress.advance(int(n or 0))
            return super().update(n)

    return Bars


def _cache_of(source: Source) -> Path:
    return Path(source.cache or constants.HF_HUB_CACHE)


def _explained(error: Exception, source: Source) -> OSError:
    """Return the one-line error that replaces the hub library's error."""
    causes, lacking = _causes(error), f"{_cache_of(source)} does not hold all of {source}"
    if any(isinstance(cause, OfflineModeIsEnabled) for cause in causes):
        return FileNotFoundError(f"HF_HUB_OFFLINE is set, and {lacking}")
    if any(isinstance(cause, OSError) and cause.errno in FULL for cause in causes):
        return OSError(f"{source}: the disk of {_cache_of(source)} is full; {ELSEWHERE}")
    if isinstance(error, HfHubHTTPError):
        return FileNotFoundError(_refused(error, source))
    if isinstance(error, LocalEntryNotFoundError):
        return OSError(
            f"{constants.ENDPOINT} can't be reached ({_first_line(causes[-1])}), and {lacking}"
        )
    if isinstance(error, OSError) and error.filename:
        return OSError(f"{source}: can't write {error.filename}: {error.strerror}; {ELSEWHERE}")
    return OSError(
        f"{source}: the download from {constants.ENDPOINT} failed ({_first_line(error)}); the same "
        "command goes on with the files that are whole"
    )


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    while error not in found:
        found.append(error)
        error = error.__cause__ or error
    return found


def _refused(error: HfHubHTTPError, source: Source) -> str:
    where, status = constants.ENDPOINT, error.response.status_code
    token = "the token in use" if get_token() else "anybody without a token (HF_TOKEN is not set)"
    if isinstance(error, GatedRepoError):
        page = f"{where}/{source.name}"
        return f"{source} is gated, and {token} is barred: accept its terms at {page}"
    if isinstance(error, RevisionNotFoundError):
        return f"{source.name} has no revision {source.revision or 'main'!r} at {where}"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{source.name} does not exist: it is no directory, and {where} shows no repository of "
            f"that name to {token}"
        )
    if status in (401, 403):
        return f"{source}: {where} refuses {token} (status {status})"
    return f"{source}: {where} answered with status {status} ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
