"""Import a module with a fault. Files are never changed."""

from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any


def install(file: Path, source: bytes) -> list[Path]:
    """Replace the source imported from `file`; the returned list gets `file` at its import."""
    imported: list[Path] = []
    get_data, path_stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def faulty_data(self: SourceFileLoader, path: str) -> bytes:
        if Path(path) != file:
            return get_data(self, path)
        imported.append(file)
        return source

    def faulty_stats(self: SourceFileLoader, path: str) -> Mapping[str, Any]:
        if Path(path) == file:
            raise OSError("no bytecode is read or written for a module with a fault")
        return path_stats(self, path)

    SourceFileLoader.get_data, SourceFileLoader.path_stats = faulty_data, faulty_stats
    return imported
