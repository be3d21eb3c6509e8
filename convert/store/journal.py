"""The journal of an unfinished store: what a killed run has finished.

The first line says what the run was asked for; every further line is one item, appended once the
item's files are on disk. A kill can tear the last line at most, and that item is written again.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self

from convert.store.manifest import StoredParameter

JOURNAL_FILE = "journal.jsonl"
Finished = dict[str, tuple[StoredParameter, ...]]


class Journal:
    """Appends finished items; holds a lock against a second run while it is open."""

    def __init__(self, file: IO[bytes], finished: Finished) -> None:
        self._file = file
        self.finished = finished

    @classmethod
    def open(cls, directory: Path, request: Mapping[str, Any]) -> Self:
        """Opens or begins the journal in `directory`.

        Raises ValueError when the journal belongs to another request, naming what differs, and
        when another process is writing it.
        """
        file = (directory / JOURNAL_FILE).open("a+b")
        try:
            _lock(file, directory)
            file.seek(0)
            lines = _whole_lines(file)
            if not lines:
                file.truncate(0)
                _append(file, request)
                return cls(file, {})
            _check_same(json.loads(lines[0]), json.loads(json.dumps(request)), directory)
            file.truncate(sum(map(len, lines)))
            return cls(file, dict(map(_parse, lines[1:])))
        except BaseException:
            file.close()
            raise

    def append(self, item: str, parameters: Sequence[StoredParameter]) -> None:
        """Records an item as finished, on disk when this returns."""
        _append(
            self._file,
            {"item": item, "parameters": [asdict(parameter) for parameter in parameters]},
        )
        self.finished[item] = tuple(parameters)

    def close(self) -> None:
        """Gives the lock back."""
        self._file.close()


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


def _parse(line: bytes) -> tuple[str, tuple[StoredParameter, ...]]:
    content = json.loads(line)
    return content["item"], tuple(map(StoredParameter.from_json, content["parameters"]))


def _check_same(begun: Mapping[str, Any], request: Mapping[str, Any], directory: Path) -> None:
    different = [name for name in request if begun.get(name) != request[name]]
    if different:
        raise ValueError(
            f"{directory} was begun with another {' and '.join(different)}; "
            "delete it to start again, or repeat the command it was begun with"
        )
