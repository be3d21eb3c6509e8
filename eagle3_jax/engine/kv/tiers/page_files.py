"""File format of a cached page: a header that identifies it, then its bytes.

    magic 8, fingerprint 32, key 32, number of bytes u64, CRC-32 u32 (little-endian), the page

Files are written under another name and renamed, so that a killed process leaves no partial page.
The checksum detects damage after a power loss.
"""

import os
import struct
import zlib
from pathlib import Path

import numpy as np

MAGIC = b"E3KVPG\x00\x01"
HEADER = struct.Struct("<8s32s32sQI")
SUFFIX, UNFINISHED = ".page", ".unfinished"


class DamagedPageError(Exception):
    """A file is not the page that its name says."""


def write_page(path: Path, fingerprint: bytes, key: bytes, page: np.ndarray) -> int:
    """Write uint8[bytes] and return the file size; on OSError, leave nothing behind."""
    header = HEADER.pack(MAGIC, fingerprint, key, page.size, zlib.crc32(page.data))
    unfinished = path.with_suffix(UNFINISHED)
    path.parent.mkdir(exist_ok=True)
    try:
        with unfinished.open("wb") as file:
            file.write(header)
            file.write(page.data)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    return HEADER.size + page.size


def read_page(path: Path, fingerprint: bytes, key: bytes, size: int) -> np.ndarray:
    """Read uint8[size]; raise DamagedPageError for anything but the whole page, or OSError."""
    page = np.empty(size, np.uint8)
    with path.open("rb", buffering=0) as file:
        header = file.read(HEADER.size)
        number = _read_into(file.fileno(), page)
        more = file.read(1)
    if len(header) < HEADER.size or number < size or more:
        raise DamagedPageError(f"{path}: its size isn't that of a page")
    magic, *names, length, checksum = HEADER.unpack(header)
    if (magic, *names, length) != (MAGIC, fingerprint, key, size):
        raise DamagedPageError(f"{path}: its header is another page's")
    if zlib.crc32(page.data) != checksum:
        raise DamagedPageError(f"{path}: its checksum isn't that of its bytes")
    return page


def _read_into(descriptor: int, page: np.ndarray) -> int:
    """Read as far as the file goes and return the number of bytes."""
    view, done = page.data, 0
    while done < len(view) and (count := os.readv(descriptor, [view[done:]])):
        done += count
    return done
