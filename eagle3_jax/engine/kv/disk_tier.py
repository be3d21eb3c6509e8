"""Disk tier: KV pages in a directory, below host memory, that outlive the server.

A page is found only under the fingerprint of everything its values depend on
(`engine/programs/fingerprint.py`), so another checkpoint, dtype or layout never matches.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.host_tier import HostTier
from eagle3_jax.engine.kv.page_files import (
    HEADER,
    DamagedPageError,
    PageFile,
    PageIndex,
    delete,
    read_page,
    write_page,
)
from eagle3_jax.engine.page_tiers import KeyedSlot, PageBytes, PageCopies, PageOrigin, TierOccupancy

THREADS, MOST_WRITES = 4, 16
"""Concurrent copies, and pages whose slots are held for writes."""
_log = logging.getLogger(__name__)


class _Completion(NamedTuple):
    page: KeyedSlot
    is_save: bool
    ok: bool


class DiskTier:
    """Pages by key in files, with a limit in bytes and LRU eviction.

    `num_damaged` counts files that were not the pages they are named as; they are deleted.
    `num_failed` counts copies that failed on the disk. `events` receives stored and removed pages.
    """

    def __init__(
        self,
        directory: Path,
        limit: int,
        memory: PageBytes,
        events: KVEventLog | None = None,
    ):
        """Open the directory; raise ValueError if it is unusable or the limit is below a page."""
        self._page_bytes = memory.page_bytes
        if limit < HEADER.size + self._page_bytes:
            raise ValueError(
                f"kv_offloading_dir_bytes must be at least {HEADER.size + self._page_bytes}, "
                f"the size of a page; got {limit}"
            )
        self._fingerprint, self._memory, self._events = memory.fingerprint, memory, events
        self._index, self._limit = PageIndex(directory, limit), limit
        self._threads = ThreadPoolExecutor(THREADS, "page-files")
        self._writing: set[int] = set()
        self._completed: deque[_Completion] = deque()
        self.num_damaged = self.num_failed = 0
        self._log_found()

    @property
    def num_ignored(self) -> int:
        """Number of files in the directory that are no pages."""
        return self._index.ignored

    @property
    def total_bytes(self) -> int:
        """Size of all pages, including those of other pairs."""
        return self._index.total_bytes

    @property
    def occupancy(self) -> TierOccupancy:
        """Occupancy, in pages of this pair's size."""
        size = HEADER.size + self._page_bytes
        return TierOccupancy("disk", self._index.total_bytes // size, self._limit // size)

    @property
    def can_save(self) -> bool:
        return len(self._writing) < MOST_WRITES

    @property
    def is_busy(self) -> bool:
        return bool(self._writing or self._completed)

    def match(self, keys: Sequence[bytes]) -> int:
        unknown = (i for i, key in enumerate(keys) if self._file(key) not in self._index)
        return next(unknown, len(keys))

    def save(self, pages: Sequence[KeyedSlot]) -> None:
        """Start writing slots, unchanged until `poll`; known keys complete at once."""
        for page in pages:
            file = self._file(page.key)
            self._writing.add(page.slot)
            if file in self._index:
                self._completed.append(_Completion(page, is_save=True, ok=True))
                continue
            for gone in self._index.add(file, HEADER.size + self._page_bytes):
                self._log_removed(gone)
            if self._events is not None:
                self._events.copied(page.key, "STORAGE")
            self._begin(self._write, page, self._completed)

    def load(self, pages: Sequence[KeyedSlot], completed: deque[_Completion] | None = None) -> None:
        """Start filling slots; completions go to `completed`, or by default to `poll`."""
        for page in pages:
            if (file := self._file(page.key)) in self._index:
                self._index.use(file)
            self._begin(self._read, page, self._completed if completed is None else completed)

    def poll(self) -> list[tuple[int, bool]]:
        """Return completed copies as (slot, success)."""
        return self.drain(self._completed)

    def drain(self, completed: deque[_Completion]) -> list[tuple[int, bool]]:
        """Drain completed copies; pages whose copy failed are forgotten."""
        taken: list[tuple[int, bool]] = []
        while completed:
            page, is_save, ok = completed.popleft()
            if is_save:
                self._writing.discard(page.slot)
            if not ok:
                self.forget([page.key])
            elif is_save and (file := self._file(page.key)) not in self._index:
                # The page was evicted while it was being written.
                delete(self._index.path(file))
            taken.append((page.slot, ok))
        return taken

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Remove these keys. With `keys=None`, remove all keys of this pair."""
        if keys is None:
            keys = [bytes.fromhex(key) for key in self._index.keys_of(self._fingerprint.hex())]
        for key in keys:
            if (file := self._file(key)) in self._index:
                self._index.remove(file)
                self._log_removed(file)

    def source(self) -> "DiskSource":
        return DiskSource(self)

    def close(self) -> None:
        """Finish pending writes and release the directory."""
        self._threads.shutdown()
        self._index.close()

    def _begin(
        self, copy: Callable[[KeyedSlot], bool], page: KeyedSlot, completed: deque[_Completion]
    ) -> None:
        is_save = copy == self._write
        self._threads.submit(
            lambda: completed.append(_Completion(page, is_save, self._ends_well(copy, page)))
        )

    def _ends_well(self, copy: Callable[[KeyedSlot], bool], page: KeyedSlot) -> bool:
        """Complete the copy even after an error, because its slot is held until then."""
        try:
            return copy(page)
        except (MemoryError, RuntimeError, ValueError) as error:
            self.num_failed += 1
            _log.warning("a page of the KV cache was not copied: %r", error)
            return False

    def _write(self, page: KeyedSlot) -> bool:
        path = self._index.path(self._file(page.key))
        try:
            data = self._memory.bytes_of(page.slot)
            write_page(path, self._fingerprint, page.key, data)
        except OSError as error:
            self.num_failed += 1
            _log.warning("a page of the KV cache can't be written: %s", error)
            return False
        return True

    def _read(self, page: KeyedSlot) -> bool:
        path = self._index.path(self._file(page.key))
        try:
            data = read_page(path, self._fingerprint, page.key, self._page_bytes)
        except FileNotFoundError:
            return False
        except (DamagedPageError, OSError) as error:
            self.num_damaged += isinstance(error, DamagedPageError)
            self.num_failed += isinstance(error, OSError)
            _log.warning("a page of the KV cache is run again instead of read: %s", error)
            return False
        self._memory.fill(page.slot, data)
        return True

    def _file(self, key: bytes) -> PageFile:
        return PageFile(self._fingerprint.hex(), key.hex())

    def _log_found(self) -> None:
        if self._events is not None:
            for key in self._index.keys_of(self._fingerprint.hex()):
                self._events.copied(bytes.fromhex(key), "STORAGE")

    def _log_removed(self, file: PageFile) -> None:
        if self._events is not None and file.fingerprint == self._fingerprint.hex():
            self._events.removed(bytes.fromhex(file.key), "STORAGE")


class DiskSource:
    """A `PageSource` for one prompt that reads from the disk tier, with its own completions."""

    def __init__(self, disk: DiskTier):
        self._disk = disk
        self._completed: deque[_Completion] = deque()

    @property
    def origin(self) -> PageOrigin:
        return "disk"

    def match(self, keys: Sequence[bytes]) -> int:
        return self._disk.match(keys)

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        self._disk.load(pages, self._completed)

    def poll(self) -> list[tuple[int, bool]]:
        return self._disk.drain(self._completed)


class HostPages(PageCopies, PageBytes, Protocol):
    """Access to host memory for pages (`eagle3_jax.engine.programs.runner.Runner`)."""


class LowerTiers(NamedTuple):
    """The host tier, for pages beyond the cache's capacity, and the disk tier below it."""

    host: HostTier | None = None
    disk: DiskTier | None = None


NO_TIERS = LowerTiers()


def make_lower_tiers(
    pages: HostPages, config: EngineConfig, events: KVEventLog | None, *, alone: bool
) -> LowerTiers:
    """Make the configured tiers; raise ValueError if host memory or directory cannot be used.

    `alone` says that no other process holds a part of the pair, as a directory requires.
    """
    if not (room := config.kv_offloading_bytes):
        return NO_TIERS
    if room < pages.page_bytes:
        raise ValueError(
            f"kv_offloading_bytes must be at least {pages.page_bytes}, the size of a page on all "
            f"devices; got {room}"
        )
    host = HostTier(pages, room // pages.page_bytes, events)
    if config.kv_offloading_dir is None:
        return LowerTiers(host)
    if not alone:
        raise ValueError(
            "kv_offloading_dir needs an engine of one process, this one has several: leave it out"
        )
    directory, limit = Path(config.kv_offloading_dir), config.kv_offloading_dir_bytes
    return LowerTiers(host, DiskTier(directory, limit, pages, events))
