"""BMP files written without Pillow, and the colours that they mean."""

import struct
from collections.abc import Iterator

import numpy as np

HEIGHT, WIDTH = 7, 13
RAW, RLE8, RLE4, FIELDS = 0, 1, 2, 3


def bmp(
    bits: int, rows: list[bytes], kind: int = RAW, extra: bytes = b"", *, down: bool = False
) -> bytes:
    """A file of these rows, the top one first, each padded to four bytes. extra: palette or masks.
    down: the rows are stored from the top."""
    padded = [row + bytes(-len(row) % 4 if kind in (RAW, FIELDS) else 0) for row in rows]
    pixels = b"".join(padded if down else padded[::-1])
    colours = len(extra) // 4 if bits <= 8 else 0
    height = -HEIGHT if down else HEIGHT
    sizes = (40, WIDTH, height, 1, bits, kind, len(pixels), 0, 0, colours, 0)
    head = struct.pack("<IiiHHIIiiII", *sizes)
    begins = 14 + len(head) + len(extra)
    start = struct.pack("<2sIHHI", b"BM", begins + len(pixels), 0, 0, begins)
    return start + head + extra + pixels


def packed(indices: np.ndarray, bits: int) -> list[bytes]:
    """Rows of indices, the first in a byte's highest bits."""
    split = (indices[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    return [np.packbits(row).tobytes() for row in split.reshape(len(indices), -1).astype(np.uint8)]


def runs(indices: np.ndarray, bits: int) -> list[bytes]:
    """Rows of runs of one pixel each, and the end of the row."""
    shift = 8 - bits
    return [b"".join(bytes((1, i << shift)) for i in row) + b"\0\0" for row in indices.tolist()]


def files() -> Iterator[tuple[str, bytes, np.ndarray]]:
    """Names, files, and their colours [height, width, 3]."""
    rng = np.random.default_rng(7)
    for bits in (1, 4, 8):
        palettes = {"colours": rng.integers(0, 256, (2**bits, 3))}
        palettes["grey"] = np.linspace(0, 255, 2**bits).astype(int)[:, None].repeat(3, 1)
        for name, palette in palettes.items():
            indices = rng.integers(0, 2**bits, (HEIGHT, WIDTH))
            entries = np.pad(palette[:, ::-1], ((0, 0), (0, 1))).astype(np.uint8).tobytes()
            for down in (False, True):
                file = bmp(bits, packed(indices, bits), RAW, entries, down=down)
                yield f"{bits} bits, {name}, {down=}", file, palette[indices]
            if bits > 1:
                kind = RLE8 if bits == 8 else RLE4
                file = bmp(bits, runs(indices, bits), kind, entries)
                yield f"{bits} bits, {name}, runs", file, palette[indices]
    colours = rng.integers(0, 256, (HEIGHT, WIDTH, 3))
    blue_first = colours[..., ::-1].astype(np.uint8)
    yield "24 bits", bmp(24, [row.tobytes() for row in blue_first]), colours
    four = np.pad(blue_first, ((0, 0), (0, 0), (0, 1)))
    yield "32 bits", bmp(32, [row.tobytes() for row in four]), colours
    for name, depths in {"555": (5, 5, 5), "565": (5, 6, 5)}.items():
        most = 2 ** np.array(depths) - 1
        fields = rng.integers(0, most + 1, (HEIGHT, WIDTH, 3))
        red, green, blue = np.moveaxis(fields, -1, 0)
        words = (red << depths[1] + depths[2] | green << depths[2] | blue).astype("<u2")
        masks = struct.pack("<III", most[0] << depths[1] + 5, most[1] << 5, most[2])
        rows = [row.tobytes() for row in words]
        yield name, bmp(16, rows, FIELDS, masks), np.round(fields * 255 / most).astype(int)
        if name == "555":
            yield "16 bits", bmp(16, rows), np.round(fields * 255 / most).astype(int)
