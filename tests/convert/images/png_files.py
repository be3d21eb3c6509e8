"""PNG files written from samples without Pillow, and the colours that the specification gives
them."""

import struct
import zlib
from dataclasses import dataclass

import numpy as np

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
"""Colour types."""
CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
DEPTHS = {GREY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8)}
DEPTHS |= {GREY_ALPHA: (8, 16), RGBA: (8, 16)}
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2))
ADAM7 += ((1, 0, 2, 1),)
"""Of each pass: first row and column, and the steps between rows and columns."""


@dataclass(frozen=True)
class Png:
    """samples: [height, width, channels]. palette: [entries, 3]. transparent: alpha of the
    palette's first entries, or the samples of the one colour that is transparent."""

    colour: int
    depth: int
    samples: np.ndarray
    palette: np.ndarray | None = None
    transparent: tuple[int, ...] | None = None
    interlaced: bool = False

    def file(self) -> bytes:
        """The file's bytes."""
        height, width, _ = self.samples.shape
        head = (width, height, self.depth, self.colour, 0, 0, int(self.interlaced))
        chunks = [chunk(b"IHDR", struct.pack(">IIBBBBB", *head))]
        if self.palette is not None:
            chunks.append(chunk(b"PLTE", self.palette.astype(np.uint8).tobytes()))
        if self.transparent is not None:
            width = "B" if self.colour == PALETTE else "H"
            chunks.append(
                chunk(b"tRNS", struct.pack(f">{len(self.transparent)}{width}", *self.transparent))
            )
        passes = ADAM7 if self.interlaced else ((0, 0, 1, 1),)
        parts = [self.samples[row::rows, column::columns] for row, column, rows, columns in passes]
        data = b"".join(self._rows(part) for part in parts if part.size)
        chunks += [chunk(b"IDAT", zlib.compress(data)), chunk(b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    def _rows(self, samples: np.ndarray) -> bytes:
        """Rows of one pass, each behind the byte of its filter, which is none."""
        flat = samples.reshape(len(samples), -1)
        bits = (flat[..., None] >> np.arange(self.depth - 1, -1, -1)) & 1
        rows = np.packbits(bits.reshape(len(flat), -1).astype(np.uint8), axis=1)
        return np.pad(rows, ((0, 0), (1, 0))).tobytes()

    def rgba(self) -> np.ndarray:
        """[height, width, 4] of 8 bits: a sample of 16 bits is its first byte."""
        values = self.samples
        if self.palette is not None:
            alpha = np.full(len(self.palette), 255)
            alpha[: len(self.transparent or ())] = self.transparent or ()
            return np.concatenate([self.palette, alpha[:, None]], -1)[values[..., 0]]
        eight = values >> 8 if self.depth == 16 else values * 255 // (2**self.depth - 1)
        if self.colour in (GREY, GREY_ALPHA):
            colours = eight[..., [0, 0, 0]]
        else:
            colours = eight[..., :3]
        alpha = np.full(values.shape[:2], 255)
        if self.colour in (GREY_ALPHA, RGBA):
            alpha = eight[..., -1]
        elif self.transparent is not None:
            alpha = np.where((values == self.transparent).all(-1), 0, 255)
        return np.concatenate([colours, alpha[..., None]], -1)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk with its length and checksum."""
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def drawn(colour: int, depth: int, *, transparent: bool, interlaced: bool) -> Png:
    """A picture of random samples, of which several pixels have the transparent colour."""
    rng = np.random.default_rng([colour, depth, transparent, interlaced])
    entries = 2**depth - (depth > 1)
    most = entries if colour == PALETTE else 2**depth
    samples = rng.integers(0, most, (13, 21, CHANNELS[colour]))
    palette = rng.integers(0, 256, (entries, 3)) if colour == PALETTE else None
    clear: tuple[int, ...] | None = None
    if transparent and colour == PALETTE:
        clear = tuple(map(int, rng.integers(0, 256, max(1, entries // 2))))
    elif transparent and colour in (GREY, RGB):
        clear = tuple(map(int, samples[3, 4]))
        samples[5:9, 6:11] = clear
    return Png(colour, depth, samples, palette, clear, interlaced)
