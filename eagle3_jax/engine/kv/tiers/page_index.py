"""Which pages a directory has, the longest unused first, within a limit of size."""

import fcntl
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from eagle3_jax.engine.kv.tiers.page_files import SUFFIX, UNFINISHED

LOCK = "lock"
_log = logging.getLogger(__name__)


class PageFile(NamedTuple):
    """A page by the pair that it is of and by its key, both in hexadecimal."""

    fingerprint: str
    key: str


class PageIndex:
    """The files of DIR/<fingerprint>/<key>.page. One process has a directory at a time.

    Pages of other pairs take room like any, and go like any; other files are left alone. ignored:
    files there that are no pages. Raises ValueError where the directory can't be used.
    """

    def __init__(self, directory: Path, limit: int):
        """limit: of all pages together, in bytes."""
        self._directory, self._limit = directory, limit
        self._lock = _lock(directory)
        self.ignored = 0
        found = [entry for folder in self._folders() for entry in self._pages_of(folder)]
        found.sort()
        self._sizes: OrderedDict[PageFile, int] = OrderedDict((f, size) for _, f, size in found)
        self.total_bytes = sum(self._sizes.values())

    def path(self, page: PageFile) -> Path:
        """Where it lies or is to lie."""
        return self._directory / page.fingerprint / f"{page.key}{SUFFIX}"

    def keys_of(self, fingerprint: str) -> list[str]:
        """Of its pages, the longest unused first."""
        return [page.key for page in self._sizes if page.fingerprint == fingerprint]

    def __contains__(self, page: object) -> bool:
        return page in self._sizes

    def add(self, page: PageFile, size: int) -> list[PageFile]:
        """Counts a page that is to be written; those that went for it."""
        self._sizes[page] = size
        self.total_bytes += size
        gone: list[PageFile] = []
        while self.total_bytes > self._limit and len(self._sizes) > 1:
            gone.append(next(iter(self._sizes)))
            self.remove(gone[-1])
        return gone

    def use(self, page: PageFile) -> None:
        """It is the one used last now, after a restart too."""
        self._sizes.move_to_end(page)
        try:
            os.utime(self.path(page))
        except OSError:
            _log.warning("%s: the time of its last use can't be written", self.path(page))

    def remove(self, page: PageFile) -> None:
        """Deletes it."""
        self.total_bytes -= self._sizes.pop(page)
        delete(self.path(page))

    def close(self) -> None:
        """Leaves the directory to another process."""
        os.close(self._lock)

    def _folders(self) -> list[Path]:
        entries = [path for path in self._directory.iterdir() if path.name != LOCK]
        folders = sorted(path for path in entries if path.is_dir())
        self.ignored += len(entries) - len(folders)
        return folders

    def _pages_of(self, folder: Path) -> list[tuple[int, PageFile, int]]:
        """When each page in it was used last, its name and its size; what is unfinished goes."""
        found: list[tuple[int, PageFile, int]] = []
        for path in folder.iterdir():
            is_ours = all(map(_is_digest, (folder.name, path.stem)))
            if is_ours and path.suffix == UNFINISHED:
                path.unlink(missing_ok=True)
            elif is_ours and path.suffix == SUFFIX and path.is_file():
                status = path.stat()
                name = PageFile(folder.name, path.stem)
                found.append((status.st_mtime_ns, name, status.st_size))
            else:
                self.ignored += 1
        return found


def delete(path: Path) -> None:
    """A file that may be gone; one that can't be deleted is found again at the next start."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("a page of the KV cache can't be deleted: %s", error)


def _is_digest(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _lock(directory: Path) -> int:
    """A descriptor that holds the directory, made where it isn't there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ValueError(f"no directory to keep pages in: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ValueError(f"{directory} is in use by another server: give each its own") from error
    return descriptor
