"""Page files in a directory: their format, and their index with a size limit.

A file has a header that identifies the page, then its bytes:

    magic 8, fingerprint 32, key 32, number of bytes u64, CRC-32 u32 (little-endian), the page

Files are written under another name and renamed, so that a killed process leaves no partial page.
The checksum detects damage after a power loss.
"""

import fcntl
import logging
import os
import struct
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np

MAGIC = b"E3KVPG\x00\x01"
HEADER = struct.Struct("<8s32s32sQI")
SUFFIX, UNFINISHED = ".page", ".unfinished"


class DamagedPageError(Exception):
    """A file is not the page that its name says."""


def write_page(path: Path, fingerprint: bytes, key: bytes, page: np.ndarray) -> int:
    """Write uint8[bytes] and return the file size; on OSError, leave nothing behind."""
    header = HEADER.pack(MAGIC, fingerprint, key, page.size, zlib.crc32(page.data))
    unfinished = path.with_suffix(UNFINISHED)
    path.parent.mkdir(exist_ok=True)
    try:
        with unfinished.open("wb") as file:
            file.write(header)
            file.write(page.data)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    return HEADER.size + page.size


def read_page(path: Path, fingerprint: bytes, key: bytes, size: int) -> np.ndarray:
    """Read uint8[size]; raise DamagedPageError for anything but the whole page, or OSError."""
    page = np.empty(size, np.uint8)
    with path.open("rb", buffering=0) as file:
        header = file.read(HEADER.size)
        number = _read_into(file.fileno(), page)
        more = file.read(1)
    if len(header) < HEADER.size or number < size or more:
        raise DamagedPageError(f"{path}: its size isn't that of a page")
    magic, *names, length, checksum = HEADER.unpack(header)
    if (magic, *names, length) != (MAGIC, fingerprint, key, size):
        raise DamagedPageError(f"{path}: its header is another page's")
    if zlib.crc32(page.data) != checksum:
        raise DamagedPageError(f"{path}: its checksum isn't that of its bytes")
    return page


def _read_into(descriptor: int, page: np.ndarray) -> int:
    """Read as far as the file goes and return the number of bytes."""
    view, done = page.data, 0
    while done < len(view) and (count := os.readv(descriptor, [view[done:]])):
        done += count
    return done


LOCK = "lock"
_log = logging.getLogger(__name__)


class PageFile(NamedTuple):
    """A page file: the pair's fingerprint and the key, both in hexadecimal."""

    fingerprint: str
    key: str


class PageIndex:
    """The files DIR/<fingerprint>/<key>.page. A lock file restricts a directory to one process.

    Pages of other pairs count towards the limit and are evicted like any. Other files are left
    alone and counted in `ignored`. Raises ValueError if the directory cannot be used.
    """

    def __init__(self, directory: Path, limit: int):
        """Scan the directory; `limit` is the total size of pages in bytes."""
        self._directory, self._limit = directory, limit
        self._lock = _lock(directory)
        self.ignored = 0
        found = [entry for folder in self._folders() for entry in self._pages_of(folder)]
        found.sort()
        self._sizes: OrderedDict[PageFile, int] = OrderedDict((f, size) for _, f, size in found)
        self.total_bytes = sum(self._sizes.values())

    def path(self, page: PageFile) -> Path:
        return self._directory / page.fingerprint / f"{page.key}{SUFFIX}"

    def keys_of(self, fingerprint: str) -> list[str]:
        """Return the keys of this fingerprint's pages, least recently used first."""
        return [page.key for page in self._sizes if page.fingerprint == fingerprint]

    def __contains__(self, page: object) -> bool:
        return page in self._sizes

    def add(self, page: PageFile, size: int) -> list[PageFile]:
        """Add a page that will be written; return the pages evicted for it."""
        self._sizes[page] = size
        self.total_bytes += size
        gone: list[PageFile] = []
        while self.total_bytes > self._limit and len(self._sizes) > 1:
            gone.append(next(iter(self._sizes)))
            self.remove(gone[-1])
        return gone

    def use(self, page: PageFile) -> None:
        """Mark a page as most recently used, also on disk for later restarts."""
        self._sizes.move_to_end(page)
        try:
            os.utime(self.path(page))
        except OSError:
            _log.warning("%s: the time of its last use can't be written", self.path(page))

    def remove(self, page: PageFile) -> None:
        self.total_bytes -= self._sizes.pop(page)
        delete(self.path(page))

    def close(self) -> None:
        os.close(self._lock)

    def _folders(self) -> list[Path]:
        entries = [path for path in self._directory.iterdir() if path.name != LOCK]
        folders = sorted(path for path in entries if path.is_dir())
        self.ignored += len(entries) - len(folders)
        return folders

    def _pages_of(self, folder: Path) -> list[tuple[int, PageFile, int]]:
        """Return last use, name and size of each page in a folder; delete unfinished files."""
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
    """Delete a file if it exists. If that fails, the next start finds it again."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("a page of the KV cache can't be deleted: %s", error)


def _is_digest(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def _lock(directory: Path) -> int:
    """Create the directory if needed and return the descriptor of its lock."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ValueError(f"kv_offloading_dir cannot be used: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ValueError(
            f"{directory} is in use by another server: give each a directory"
        ) from error
    return descriptor
