"""Images and parts that no client should send: a seeded stream of bodies, for every protocol."""

import random
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

from seeing import data_url, picture

KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
OTHERS = ("ICO", "EPS", "TIFF", "PPM", "TGA", "PDF", "ICNS")
"""Formats that Pillow reads and this server does not."""


def chunk(kind: bytes, data: bytes) -> bytes:
    """One of a PNG's."""
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(width: int, height: int, *extra: bytes, rows: int = 1) -> bytes:
    """A PNG that says it is so large and has so few rows."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * min(rows * (3 * width + 1), 2**22), 9)
    chunks = [chunk(b"IHDR", head), *extra, chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def resized(kind: str, at: int, size: bytes) -> bytes:
    """A file whose header says at this place that it is so large."""
    data = bytearray(picture(16, 16, kind=kind))
    data[at : at + len(size)] = size
    return bytes(data)


def jpeg(width: int, height: int) -> bytes:
    frame = picture(16, 16, kind="JPEG").index(b"\xff\xc0")
    return resized("JPEG", frame + 5, struct.pack(">HH", height, width))


def gif(width: int, height: int) -> bytes:
    return resized("GIF", 6, struct.pack("<HH", width, height))


def bmp(width: int, height: int) -> bytes:
    return resized("BMP", 18, struct.pack("<ii", width, height))


BOMB = zlib.compress(b"\0" * 2**26, 9)
FILES: tuple[Callable[[], bytes], ...] = (
    lambda: b"",
    lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\n",
    lambda: b"\0\0\1\0\1\0\0\0\0\0\1\0 \0" + b"\xff" * 40,
    lambda: png(60_000, 60_000),
    lambda: png(2**31 - 1, 1),
    lambda: png(0, 5),
    lambda: png(2000, 2000, rows=2000),
    lambda: png(1, 30_000, rows=30_000),
    lambda: png(30, 30, chunk(b"iCCP", b"a\0\0" + BOMB), rows=30),
    lambda: png(30, 30, chunk(b"zTXt", b"a\0\0" + BOMB), rows=30),
    lambda: png(30, 30, chunk(b"iTXt", b"a\0\1\0\0\0" + BOMB), rows=30),
    lambda: png(30, 30, chunk(b"eXIf", b"MM\0*" + b"\xff" * 50), rows=30),
    lambda: png(30, 30, chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)), rows=30),
    lambda: jpeg(65_500, 65_500),
    lambda: jpeg(1, 65_500),
    lambda: jpeg(0, 0),
    lambda: gif(65_535, 65_535),
    lambda: gif(0, 0),
    lambda: bmp(2**31 - 1, 2**31 - 1),
    lambda: bmp(-5, 20),
    lambda: bmp(5, -(2**31)),
    lambda: b"RIFF\xff\xff\xff\xffWEBPVP8X" + b"\xff" * 60,
    lambda: b"data:image/png;base64," + b64encode(picture()),
    lambda: b"\x89PNG\r\n\x1a\n" * 1000,
    lambda: zlib.compress(b"\0" * 2**24),
)


def mutated(rng: random.Random) -> bytes:
    """A sound file with a few bytes of it changed, cut or repeated."""
    size = rng.choice((1, 5, 14, 28, 57))
    data = bytearray(picture(size, size, "teal", rng.choice(KINDS)))
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) or 1)
        match rng.randrange(5):
            case 0:
                data = data[:at]
            case 1:
                data[at : at + 4] = rng.randbytes(4)
            case 2:
                data[at:at] = data[at : at + rng.randrange(64)]
            case 3:
                del data[at : at + rng.randrange(16)]
            case _:
                data += rng.randbytes(rng.randrange(99))
    return bytes(data)


def file(rng: random.Random) -> bytes:
    match rng.randrange(10):
        case 0 | 1 | 2:
            return rng.choice(FILES)()
        case 3:
            return picture(32, 32, kind=rng.choice(OTHERS))
        case 4:
            return rng.randbytes(rng.randrange(300))
        case _:
            return mutated(rng)


NASTY: tuple[Any, ...] = (None, True, 0, -1, 1.5, "", " ", [], {}, [[]], "\0", "\ud800", "é" * 99)
NASTY += ("file:///etc/passwd", "http://127.0.0.1/", "http://[", "javascript:x", "blob:x", "data:")
NASTY += ("data:,", "data:image/png", "data:;base64,", "data:image/png;base64,", "a" * 5000)
NASTY += ("data:image/png;base64,====", "data:image/png;base64,é", "data:image/png;base64,a b")
NASTY += ("data:image/png;base64,data:image/png;base64,AAAA", "DATA:IMAGE/PNG;BASE64,AAAA")


def url(rng: random.Random) -> Any:
    """Mostly a data URI, some of them damaged."""
    if rng.random() < 0.15:
        return rng.choice(NASTY)
    found = data_url(file(rng), rng.choice(("image/png", "image/svg+xml", "image/", "x", "")))
    if rng.random() < 0.2:
        at = rng.randrange(len(found))
        found = found[:at] + rng.choice(("", "=", "\n", "%", "-", ",", ";", "\u2028")) + found[at:]
    return found


def in_chat(rng: random.Random) -> Any:
    match rng.randrange(8):
        case 0:
            return rng.choice((*NASTY, {"type": "image_url"}, {"type": rng.choice(NASTY)}))
        case 1:
            return {"type": "image_url", "image_url": url(rng)}
        case 2:
            return {"type": "text", "text": rng.choice(("<|media_pad|>", *NASTY))}
        case detail:
            more = {"detail": rng.choice(NASTY)} if detail == 3 else {}
            return {"type": "image_url", "image_url": {"url": url(rng), **more}}


def in_message(rng: random.Random) -> Any:
    where = url(rng)
    source: Any = {"type": "url", "url": where}
    if rng.random() < 0.7:
        source = {"type": "base64", "media_type": "image/png", "data": f"{where}".partition(",")[2]}
    if rng.random() < 0.2:
        source = rng.choice((*NASTY, {"type": rng.choice(NASTY)}, {**source, "x": 1}))
    return {"type": "image", "source": source}


def in_response(rng: random.Random) -> Any:
    odd = {rng.choice(("detail", "file_id")): rng.choice(NASTY)} if rng.random() < 0.2 else {}
    return {"type": "input_image", "image_url": url(rng), **odd}


def bodies(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Paths and bodies without end; some have more images than a prompt may have."""
    rng = random.Random(seed)
    while True:
        role = rng.choice(("user", "user", "user", "tool", "system", "assistant", "x"))
        kind, count = (
            rng.choice((in_chat, in_message, in_response)),
            rng.choice((1, 1, 1, 2, 3, 130)),
        )
        content: Any = [kind(rng) for _ in range(count % 128)] * (65 if count == 130 else 1)
        if kind is in_chat:
            message = {"role": role, "content": content, "tool_call_id": "a"}
            yield "/v1/chat/completions", {"messages": [message], "max_tokens": 1}
        elif kind is in_message:
            if role == "tool":
                content = [{"type": "tool_result", "tool_use_id": "a", "content": content}]
            turn = {"role": rng.choice(("user", "user", role)), "content": content}
            yield "/v1/messages", {"messages": [turn], "max_tokens": 1}
        else:
            item: Any = {"role": role, "content": content}
            if role == "tool":
                item = {"type": "function_call_output", "call_id": "a", "output": content}
            yield "/v1/responses", {"input": [item], "max_output_tokens": 1}
