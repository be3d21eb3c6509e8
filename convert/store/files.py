"""Files of sources and stores: fingerprint, copy, list, compare and write durably."""

import hashlib
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from convert.files.safetensors_files import MAX_HEADER_BYTES
from eagle3_jax.replace_file import replaced

ITEMS = "items"
"""Folder of a store's Orbax items."""
HASHED_WHOLE = ("config.json", "model.safetensors.index.json")
BLOCKS, BLOCK_BYTES = 256, 4096
"""Sample of a file's weights: evenly spread blocks that include the first and last bytes. Files up
to 1 MiB are read whole."""
COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "tiktoken.model",
    "special_tokens_map.json",
    "chat_template*",
    "preprocessor_config.json",
)
"""Patterns of the files that a store needs to serve without its source."""


@dataclass(frozen=True)
class SourceFile:
    """A file of the source.

    `changed_ns` is its modification time in nanoseconds since 1970. `sample` is the SHA-256 of a
    JSON file, or of the header and sampled blocks of a safetensors file.
    """

    name: str
    size: int
    changed_ns: int
    sample: str


def fingerprint(directory: Path) -> tuple[SourceFile, ...]:
    """Describe every file that a conversion depends on, reading 1 MiB of each file's weights.

    Changed weights go unnoticed only if size, modification time and all sampled bytes are equal.
    """
    files = [*directory.glob("*.safetensors"), *(directory / name for name in HASHED_WHOLE)]
    return tuple(_describe(file) for file in sorted(files) if file.is_file())


def side_files(directory: Path) -> list[Path]:
    """Return the configuration, tokenizer and chat template files."""
    found = {file for pattern in COPIED for file in directory.glob(pattern) if file.is_file()}
    return sorted(found)


def copy_side_files(source: Path, destination: Path) -> dict[str, str]:
    """Copy the side files; return their names and the SHA-256 of the copies."""
    sums = {}
    for file in side_files(source):
        shutil.copyfile(file, destination / file.name)
        sums[file.name] = file_checksum(destination / file.name)
    return sums


def file_checksum(file: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def files_below(directory: Path, store: Path) -> dict[str, int]:
    """Return each file's path relative to the store, with its size in bytes.

    Without the directory there are none. Raises ValueError for a link, which could lead anywhere.
    """
    sizes = {}
    for path in chain([directory], directory.rglob("*")):
        if path.is_symlink():
            raise ValueError(
                f"{path} is a link; a store's items must be files, copy them in its place"
            )
        if path != directory and not path.is_dir():
            sizes[path.relative_to(store).as_posix()] = path.stat().st_size
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


def _describe(file: Path) -> SourceFile:
    found = file.stat()
    sample = file_checksum(file) if file.name in HASHED_WHOLE else _sample(file, found.st_size)
    return SourceFile(file.name, found.st_size, found.st_mtime_ns, sample)


def _sample(file: Path, size: int) -> str:
    with file.open("rb", buffering=0) as opened:
        prefix = opened.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        start = min(size, 8 + min(length, MAX_HEADER_BYTES))
        digest = hashlib.sha256(prefix)
        for offset, count in [(8, start - 8), *_blocks(start, size)]:
            digest.update(os.pread(opened.fileno(), max(count, 0), offset))
    return digest.hexdigest()


def _blocks(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield offsets and sizes of the blocks to read between two offsets."""
    if end - start <= BLOCKS * BLOCK_BYTES:
        yield start, end - start
        return
    for block in range(BLOCKS):
        yield start + block * (end - start - BLOCK_BYTES) // (BLOCKS - 1), BLOCK_BYTES
