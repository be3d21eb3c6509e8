"""Files that are on disk, not only in the page cache, when a function returns."""

import os
from pathlib import Path

from eagle3_jax.replace_file import replaced


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
