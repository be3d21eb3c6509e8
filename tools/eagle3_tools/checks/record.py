"""Records of checks and measurements: JSON lines that survive a kill, and whole JSON files.

A session's lines have a `kind`: `conditions` first (device, date, versions, commit), a line for
each finished item, and `bars` last.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Record:
    """A record of JSON lines; with `path` None, nothing is written."""

    path: Path | None

    def begin(self, lines: Sequence[dict[str, Any]] = ()) -> None:
        """Replace the file atomically by these lines."""
        if self.path:
            _replace(self.path, "".join(map(_line, lines)))

    def add(self, kind: str, **fields: Any) -> None:
        """Append a line and sync it to disk, so that a killed process loses none."""
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line({"kind": kind, **fields}))
                file.flush()
                os.fsync(file.fileno())


def read_record(path: Path) -> list[dict[str, Any]]:
    """Read the lines, without a truncated last one. Raises ValueError for other invalid lines."""
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(whole, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: expected JSON, got {line[:60]!r}") from error
    return found


def write_json(path: str | Path, value: Any, *, indent: int = 2) -> None:
    """Write a file atomically; infinities and NaN, which JSON does not have, become null."""
    text = json.dumps(_finite(value), indent=indent, allow_nan=False)
    _replace(Path(path), f"{text}\n")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of this source, or None if it is not in a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _replace(path: Path, text: str) -> None:
    # Machines that kernels are measured on have no eagle3_jax, whose `replaced` does the same.
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields) + "\n"
