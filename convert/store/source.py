"""What a store was made from: the source's files, told apart by size and header."""

import hashlib
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from convert.safetensors_files import MAX_HEADER_BYTES

HASHED_WHOLE = ("config.json", "model.safetensors.index.json")
COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "tiktoken.model",
    "special_tokens_map.json",
    "chat_template*",
    "preprocessor_config.json",
)
"""Patterns of the files that make a store serve alone."""


@dataclass(frozen=True)
class SourceFile:
    """A file of the source; `header` is the SHA-256 of a safetensors header or a JSON file."""

    name: str
    size: int
    header: str


def fingerprint(directory: Path) -> tuple[SourceFile, ...]:
    """Describes every file that a conversion depends on, without reading the weights."""
    files = [*directory.glob("*.safetensors"), *(directory / name for name in HASHED_WHOLE)]
    return tuple(
        SourceFile(file.name, file.stat().st_size, hashlib.sha256(_head(file)).hexdigest())
        for file in sorted(files)
        if file.is_file()
    )


def copy_side_files(source: Path, destination: Path) -> None:
    """Copies configuration, tokenizer and chat template."""
    for pattern in COPIED:
        for file in sorted(source.glob(pattern)):
            if file.is_file():
                shutil.copyfile(file, destination / file.name)


def _head(file: Path) -> bytes:
    if file.name in HASHED_WHOLE:
        return file.read_bytes()
    with file.open("rb") as opened:
        prefix = opened.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        return prefix + opened.read(min(length, MAX_HEADER_BYTES))
