"""Small image files that Pillow takes long, or much memory, to decode. Their pixels are few."""

import io
import struct
from collections.abc import Callable, Mapping

from malformed import chunk, png
from PIL import Image


def jpeg_of_scans(scans: int = 2000, side: int = 1000) -> bytes:
    """A progressive JPEG whose last scan, of one byte for each run of blocks, is repeated."""
    written = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(written, "JPEG", progressive=True)
    data = written.getvalue()
    last, end = data.rindex(b"\xff\xda"), data.rindex(b"\xff\xd9")
    return data[:last] + data[last:end] * scans + data[end:]


def jpeg_of_segments(segments: int = 80_000) -> bytes:
    """A JPEG with Exif in many segments, which Pillow joins one by one."""
    written = io.BytesIO()
    Image.new("RGB", (30, 30), "red").save(written, "JPEG")
    data = written.getvalue()
    body = b"Exif\0\0" + b"MM\0*" * 8
    return data[:2] + (b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body) * segments + data[2:]


def png_of_chunks(chunks: int = 300_000) -> bytes:
    """A PNG with empty chunks before its picture."""
    return png(30, 30, chunk(b"teSt", b"") * chunks, rows=30)


def bmp_of_short_rows(side: int = 2500) -> bytes:
    """A bitmap in which each row has one pixel and an end: Pillow fills rows byte by byte."""
    rows = b"\x01\x01\0\0" * side + b"\0\1"
    colours = struct.pack("<256I", *range(256))
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(rows), 0, 0, 256, 0)
    begins = 14 + len(head) + len(colours)
    start = struct.pack("<2sIHHI", b"BM", begins + len(rows), 0, 0, begins)
    return start + head + colours + rows


def gif_of_extensions(extensions: int = 1_200_000) -> bytes:
    """A GIF with comments before its picture."""
    written = io.BytesIO()
    Image.new("P", (30, 30)).save(written, "GIF")
    data = written.getvalue()
    first = data.index(b"\x2c")
    return data[:first] + b"\x21\xfe\x01a\0" * extensions + data[first:]


SLOW: Mapping[str, Callable[[], bytes]] = {
    "a JPEG of many scans": jpeg_of_scans,
    "a JPEG of many segments": jpeg_of_segments,
    "a PNG of many chunks": png_of_chunks,
    "a bitmap of short rows": bmp_of_short_rows,
    "a GIF of many comments": gif_of_extensions,
}


def webp_of_large_canvas(side: int = 16_383) -> bytes:
    """An animation whose small frames stand on a large canvas, of which Pillow makes two."""
    written = io.BytesIO()
    red, blue = Image.new("RGB", (30, 30), "red"), Image.new("RGB", (30, 30), "blue")
    red.save(written, "WEBP", save_all=True, append_images=[blue])
    data = bytearray(written.getvalue())
    data[24:30] = (side - 1).to_bytes(3, "little") * 2
    return bytes(data)
