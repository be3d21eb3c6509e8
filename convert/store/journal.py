"""Journal of an unfinished store: the items that an interrupted run completed.

The first line describes the request. Every further line is one item, appended once the item's files
are on disk. A kill can damage only the last line; that item is written again.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

from convert.files.json_object import parse_object
from convert.store.records import FinishedItem, read_record

JOURNAL_FILE = "journal.jsonl"
Finished = dict[str, FinishedItem]


class Journal:
    """An open journal of finished items, with a lock that excludes a second run."""

    def __init__(self, file: IO[bytes], finished: Finished) -> None:
        self._file = file
        self.finished = finished

    @classmethod
    @contextmanager
    def open(cls, directory: Path, request: Mapping[str, Any]) -> Iterator[Self]:
        """Open or create the journal in `directory`, and hold its lock for the block.

        Raises ValueError if the journal belongs to another request (naming the difference), is
        damaged, or is being written by another process.
        """
        with (directory / JOURNAL_FILE).open("a+b") as file:
            _lock(file, directory)
            file.seek(0)
            lines = _whole_lines(file)
            finished = _read(lines, request, directory) if lines else {}
            file.truncate(sum(map(len, lines)))
            if not lines:
                _append(file, request)
            yield cls(file, finished)

    def append(self, item: FinishedItem) -> None:
        """Record an item as finished; the record is on disk on return."""
        _append(self._file, asdict(item))
        self.finished[item.item] = item


def _lock(file: IO[bytes], directory: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"another process is writing {directory}; wait for it") from error


def _whole_lines(file: IO[bytes]) -> list[bytes]:
    lines = file.readlines()
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def _append(file: IO[bytes], content: Mapping[str, Any]) -> None:
    file.write(json.dumps(content).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _read(lines: list[bytes], request: Mapping[str, Any], directory: Path) -> Finished:
    finished: Finished = {}
    try:
        begun = parse_object(lines[0], unique_names=True)
        for item in (read_record(FinishedItem, line) for line in lines[1:]):
            if item.item in finished:
                raise ValueError(f"item {item.item} is there twice")
            finished[item.item] = item
    except ValueError as error:
        raise ValueError(
            f"{directory / JOURNAL_FILE} is damaged: {error}; delete {directory} to start again"
        ) from error
    _check_same(begun, json.loads(json.dumps(request)), directory)
    return finished


def _check_same(begun: Mapping[str, Any], request: Mapping[str, Any], directory: Path) -> None:
    different = [name for name in request if begun.get(name) != request[name]]
    if different:
        changed = _changed_files(begun, request) if "source" in different else ""
        raise ValueError(
            f"{directory} was begun with another {' and '.join(different)}{changed}; "
            "delete it to start again, or repeat the command it was begun with"
        )


def _changed_files(begun: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """Return a note that names the first source file that changed."""
    before = begun.get("source")
    before = before if isinstance(before, list) else []
    names = [file["name"] for file in request["source"] if file not in before]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f" ({names[0]}{more} changed or new)" if names else " (files are gone)"
