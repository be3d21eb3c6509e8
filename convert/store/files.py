"""Files of a store: their names and sizes, links refused; and writing that waits for the disk."""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from eagle3_jax.replace_file import replaced


def files_below(directory: Path) -> dict[str, int]:
    """Path relative to a directory -> size in bytes; none without the directory.

    Raises ValueError for a link: it could lead anywhere.
    """
    sizes = {}
    for path in chain([directory], directory.rglob("*")):
        if path.is_symlink():
            raise ValueError(
                f"{path} is a link; a store's items must be files, copy them in its place"
            )
        if path != directory and not path.is_dir():
            sizes[path.relative_to(directory).as_posix()] = path.stat().st_size
    return sizes


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
