"""Pages in a directory, below the host's memory: they outlive the server.

A page is found there only under the fingerprint of everything its numbers depend on
(`engine/programs/fingerprint.py`), so that another checkpoint, dtype or layout finds none of them.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.tiers.page_files import (
    HEADER,
    DamagedPageError,
    read_page,
    write_page,
)
from eagle3_jax.engine.kv.tiers.page_index import PageFile, PageIndex, delete
from eagle3_jax.engine.kv.tiers.tier import KeyedSlot, PageBytes, Place, TierRoom

THREADS, MOST_WRITES = 4, 16
"""Copies at a time, and pages whose slots are held for it."""
_log = logging.getLogger(__name__)


def disk_tier(
    memory: PageBytes, config: EngineConfig, events: KVEventLog | None, *, alone: bool
) -> "DiskTier | None":
    """Of kv_offloading_dir, None for none. alone: no other process holds a part of the pair. Raises
    ValueError where the directory can't be used."""
    if config.kv_offloading_dir is None:
        return None
    if not alone:
        raise ValueError("kv_offloading_dir: several processes as one engine keep no pages on disk")
    directory, limit = Path(config.kv_offloading_dir), config.kv_offloading_dir_bytes
    return DiskTier(directory, limit, memory, events)


class _Ended(NamedTuple):
    page: KeyedSlot
    is_save: bool
    ok: bool


class DiskTier:
    """A `LowerTier` within a limit of bytes; those used last stay longest.

    num_damaged: files that were not the pages they were named as; they are deleted. num_failed:
    copies that the disk failed. events: gets what can be found here, and what no more.
    """

    def __init__(
        self,
        directory: Path,
        limit: int,
        memory: PageBytes,
        events: KVEventLog | None = None,
    ):
        """Raises ValueError where the directory can't be used, or is to hold
        less than a page."""
        self._page_bytes = memory.page_bytes
        if limit < HEADER.size + self._page_bytes:
            raise ValueError(
                f"kv_offloading_dir_bytes must be at least {HEADER.size + self._page_bytes}, "
                f"a page; got {limit}"
            )
        self._fingerprint, self._memory, self._events = memory.fingerprint, memory, events
        self._index, self._limit = PageIndex(directory, limit), limit
        self._threads = ThreadPoolExecutor(THREADS, "page-files")
        self._writing: set[int] = set()
        self._ended: deque[_Ended] = deque()
        self.num_damaged = self.num_failed = 0
        self._tell_found()

    @property
    def place(self) -> Place:
        """It is a disk."""
        return "disk"

    @property
    def num_ignored(self) -> int:
        """Files in the directory that are no pages."""
        return self._index.ignored

    @property
    def total_bytes(self) -> int:
        """Of all pages there, other pairs' too."""
        return self._index.total_bytes

    @property
    def room(self) -> TierRoom:
        """How full it is, in pages of this pair's size."""
        size = HEADER.size + self._page_bytes
        return TierRoom("disk", self._index.total_bytes // size, self._limit // size)

    @property
    def can_save(self) -> bool:
        """Whether a save may begin."""
        return len(self._writing) < MOST_WRITES

    @property
    def is_busy(self) -> bool:
        """Whether a save is under way."""
        return bool(self._writing or self._ended)

    def match(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, it has."""
        unknown = (i for i, key in enumerate(keys) if self._file(key) not in self._index)
        return next(unknown, len(keys))

    def save(self, pages: Sequence[KeyedSlot]) -> None:
        """Begins to write these; those it has already end at once."""
        for page in pages:
            file = self._file(page.key)
            self._writing.add(page.slot)
            if file in self._index:
                self._ended.append(_Ended(page, is_save=True, ok=True))
                continue
            for gone in self._index.add(file, HEADER.size + self._page_bytes):
                self._tell_removed(gone)
            if self._events is not None:
                self._events.copied(page.key, "STORAGE")
            self._begin(self._write, page, self._ended)

    def load(self, pages: Sequence[KeyedSlot], ended: deque[_Ended] | None = None) -> None:
        """Begins to fill these slots; they end among `ended`, else for `done`."""
        for page in pages:
            if (file := self._file(page.key)) in self._index:
                self._index.use(file)
            self._begin(self._read, page, self._ended if ended is None else ended)

    def done(self) -> list[tuple[int, bool]]:
        """Slots whose copies have ended."""
        return self.take(self._ended)

    def take(self, ended: deque[_Ended]) -> list[tuple[int, bool]]:
        """Empties it. A page whose copy failed can't be found any more."""
        taken: list[tuple[int, bool]] = []
        while ended:
            page, is_save, ok = ended.popleft()
            if is_save:
                self._writing.discard(page.slot)
            if not ok:
                self.forget([page.key])
            elif is_save and (file := self._file(page.key)) not in self._index:
                # It was given up while it was being written.
                delete(self._index.path(file))
            taken.append((page.slot, ok))
        return taken

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Nobody shall find these keys, None: any key of this pair."""
        if keys is None:
            keys = [bytes.fromhex(key) for key in self._index.keys_of(self._fingerprint.hex())]
        for key in keys:
            if (file := self._file(key)) in self._index:
                self._index.remove(file)
                self._tell_removed(file)

    def source(self) -> "DiskSource":
        """Its pages for one prompt."""
        return DiskSource(self)

    def close(self) -> None:
        """Waits for what is being written and leaves the directory to another process."""
        self._threads.shutdown()
        self._index.close()

    def _begin(
        self, copy: Callable[[KeyedSlot], bool], page: KeyedSlot, ended: deque[_Ended]
    ) -> None:
        is_save = copy == self._write
        self._threads.submit(
            lambda: ended.append(_Ended(page, is_save, self._ends_well(copy, page)))
        )

    def _ends_well(self, copy: Callable[[KeyedSlot], bool], page: KeyedSlot) -> bool:
        """Whatever happens a copy ends: its slot is held until then."""
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

    def _tell_found(self) -> None:
        if self._events is not None:
            for key in self._index.keys_of(self._fingerprint.hex()):
                self._events.copied(bytes.fromhex(key), "STORAGE")

    def _tell_removed(self, file: PageFile) -> None:
        if self._events is not None and file.fingerprint == self._fingerprint.hex():
            self._events.removed(bytes.fromhex(file.key), "STORAGE")


class DiskSource:
    """A `PageSource` of a prompt's own: the disk's pages, whose ends it hears itself."""

    def __init__(self, disk: DiskTier):
        self._disk = disk
        self._ended: deque[_Ended] = deque()

    @property
    def place(self) -> Place:
        """It is a disk."""
        return "disk"

    def match(self, keys: Sequence[bytes]) -> int:
        """How many of the keys, from the first on, the disk has."""
        return self._disk.match(keys)

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        """Begins to fill these slots."""
        self._disk.load(pages, self._ended)

    def done(self) -> list[tuple[int, bool]]:
        """Slots whose copies have ended."""
        return self._disk.take(self._ended)
