"""Files that are on disk, not only in the page cache, when a function returns."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Writes a file and waits for the disk; it appears complete or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Waits until the directory's entries are on disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
