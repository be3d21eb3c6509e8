"""Files of a store: their names and sizes, links refused; and writing that waits for the disk."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from eagle3_jax.replace_file import replaced


def files_below(directory: Path) -> dict[str, int]:
    """Path relative to a directory -> size in bytes; none without the directory.

    Raises ValueError for a link: it could lead anywhere.
    """
    _refuse_link(directory.is_symlink(), directory)
    return dict(_walk(directory, "")) if directory.is_dir() else {}


def differences(found: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    """A line for each file that is missing, of another size or not expected."""
    lines = []
    for name in sorted({*found, *expected}):
        if name not in found:
            lines.append(f"{name}: missing")
        elif name not in expected:
            lines.append(f"{name}: not listed")
        elif found[name] != expected[name]:
            lines.append(f"{name}: {found[name]} bytes, not {expected[name]}")
    return lines


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file and waits for the disk; it appears complete or not at all."""
    with replaced(path) as file:
        file.write(content)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Waits until the directory's entries are on disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _walk(directory: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            _refuse_link(entry.is_symlink(), Path(entry.path))
            name = prefix + entry.name
            if entry.is_dir():
                yield from _walk(Path(entry.path), f"{name}/")
            else:
                yield name, entry.stat().st_size


def _refuse_link(is_link: bool, path: Path) -> None:
    if is_link:
        raise ValueError(f"{path} is a link; a store's items must be files, copy them in its place")
