"""List the files of a store, refuse links, and write files durably."""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from eagle3_jax.replace_file import replaced


def files_below(directory: Path) -> dict[str, int]:
    """Return each file's path relative to the directory, with its size in bytes.

    Without the directory there are none. Raises ValueError for a link, which could lead anywhere.
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
    """Return a line for each file that is missing, unexpected or of another size."""
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
    """Write a file atomically and wait until it is on disk."""
    with replaced(path) as file:
        file.write(content)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Wait until the directory's entries are on disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
