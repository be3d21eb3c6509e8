"""Files of every kind, in every mode that Pillow opens them in, have the colours of their samples.

PNGs with 16 bits or a transparent colour are written here: Pillow cannot write them, and reads some
of them wrong.
"""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from convert.images import decode

BACKGROUND = (10, 200, 90)
GREY, RGB, GREY_ALPHA, RGBA = 0, 2, 4, 6
"""PNG's colour types."""
CHANNELS = {GREY: 1, RGB: 3, GREY_ALPHA: 2, RGBA: 4}
KINDS = [(GREY, depth) for depth in (1, 2, 4, 8, 16)]
KINDS += [(colour, depth) for colour in (RGB, GREY_ALPHA, RGBA) for depth in (8, 16)]


def colours_of(data: bytes, background: Any = None) -> np.ndarray:
    image = decode(data, exif=True, background=background)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def check(data: bytes, rgba: np.ndarray) -> None:
    """The colours are those of the samples, and lie on the background by their alpha."""
    np.testing.assert_array_equal(colours_of(data), rgba[..., :3])
    alpha = rgba[..., 3:] / 255
    expected = rgba[..., :3] * alpha + np.array(BACKGROUND) * (1 - alpha)
    np.testing.assert_allclose(colours_of(data, BACKGROUND), expected, atol=0.51)


def png(colour: int, depth: int, samples: np.ndarray, clear: tuple[int, ...] | None) -> bytes:
    """The file of samples [height, width, channels]; clear: the samples of a transparent colour."""
    height, width, _ = samples.shape
    bits = (samples.reshape(height, -1, 1) >> np.arange(depth - 1, -1, -1)) & 1
    rows = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    unfiltered = np.pad(rows, ((0, 0), (1, 0))).tobytes()
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = {b"IHDR": head}
    if clear is not None:
        parts[b"tRNS"] = struct.pack(f">{len(clear)}H", *clear)
    parts |= {b"IDAT": zlib.compress(unfiltered), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts.items()
    )


@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_a_png_has_the_colours_of_its_samples(colour: int, depth: int, transparent: bool) -> None:
    """Only the first byte of a 16-bit sample counts."""
    rng = np.random.default_rng([colour, depth])
    samples = rng.integers(0, 2**depth, (13, 21, CHANNELS[colour]))
    has_alpha = colour in (GREY_ALPHA, RGBA)
    clear = None
    if transparent and not has_alpha:
        clear = tuple(map(int, samples[3, 4]))
        samples[5:9, 6:11] = clear
    eight = samples >> 8 if depth == 16 else samples * 255 // (2**depth - 1)
    colours = eight[..., :3] if colour in (RGB, RGBA) else eight[..., [0, 0, 0]]
    alpha = np.where((samples == clear).all(-1), 0, 255) if clear else np.full((13, 21), 255)
    alpha = eight[..., -1] if has_alpha else alpha
    check(png(colour, depth, samples, clear), np.concatenate([colours, alpha[..., None]], -1))


def test_a_colour_of_16_bits_is_transparent_where_both_bytes_agree_in_grey() -> None:
    file = png(GREY, 16, np.array([[[0x1234], [0x1235], [0x1334]]]), (0x1234,))
    assert colours_of(file, BACKGROUND)[0].tolist() == [[10, 200, 90], [18] * 3, [19] * 3]


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("transparent", [None, 3])
@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP"])
def test_a_palette_gives_the_colours(kind: str, transparent: int | None) -> None:
    rng = np.random.default_rng(1)
    indices, palette = rng.integers(0, 16, (9, 11), np.uint8), rng.integers(0, 256, (16, 3))
    image = Image.fromarray(indices).convert("P")
    image.putdata(indices.ravel().tolist())
    image.putpalette(palette.ravel().tolist())
    given = {} if transparent is None or kind == "BMP" else {"transparency": transparent}
    alpha = np.where(indices == transparent, 0, 255) if given else np.full(indices.shape, 255)
    check(saved(image, kind, **given), np.concatenate([palette[indices], alpha[..., None]], -1))


@pytest.mark.parametrize("channels", [3, 4])
def test_a_webp_without_loss_has_the_colours_of_its_samples(channels: int) -> None:
    samples = np.random.default_rng(2).integers(1, 256, (9, 11, channels)).astype(np.uint8)
    data = saved(Image.fromarray(samples), "WEBP", lossless=True, exact=True)
    alpha = samples[..., 3:] if channels == 4 else np.full((9, 11, 1), 255)
    check(data, np.concatenate([samples[..., :3], alpha], -1).astype(int))


@pytest.mark.parametrize(
    ("mode", "sample", "colour"),
    [
        ("L", 77, (77, 77, 77)),
        ("RGB", (200, 30, 90), (200, 30, 90)),
        ("CMYK", (51, 102, 153, 51), (163, 122, 82)),
    ],
)
def test_a_jpeg_has_the_colour_that_it_is_of(
    mode: str, sample: Any, colour: tuple[int, int, int]
) -> None:
    """CMYK, which Adobe stores inverted, as (255 - C)(255 - K) / 255."""
    data = saved(Image.new(mode, (16, 16), sample), "JPEG", quality=100)
    np.testing.assert_allclose(colours_of(data, BACKGROUND), np.full((16, 16, 3), colour), atol=2)
