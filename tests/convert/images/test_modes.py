"""Every kind of file that is read, in every mode that Pillow opens it in, by its colours.

The files of PNG and BMP are written here, sample by sample. For formats that compress with loss, or
that only Pillow writes here, files have one colour or a palette that was chosen.
"""

import io
from itertools import product
from typing import Any

import numpy as np
import pytest
from bmp_files import files
from PIL import Image
from png_files import CHANNELS, DEPTHS, GREY_ALPHA, RGBA, Png, drawn

from convert.images.decode import decode

BACKGROUND = (10, 200, 90)
BMPS = {name: found for name, *found in files()}
PNGS = [
    (colour, depth, transparent, interlaced)
    for colour in CHANNELS
    for depth, transparent, interlaced in product(DEPTHS[colour], (False, True), (False, True))
    if not (transparent and colour in (GREY_ALPHA, RGBA))
]


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


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize(("colour", "depth", "transparent", "interlaced"), PNGS)
def test_a_png_has_the_colours_of_its_samples(
    colour: int, depth: int, transparent: bool, interlaced: bool
) -> None:
    png = drawn(colour, depth, transparent=transparent, interlaced=interlaced)
    check(png.file(), png.rgba())


def test_a_colour_of_16_bits_is_transparent_where_both_bytes_agree_in_grey() -> None:
    samples = np.array([[[0x1234], [0x1235], [0x1334]]])
    png = Png(0, 16, samples, transparent=(0x1234,))
    assert colours_of(png.file(), BACKGROUND)[0].tolist() == [[10, 200, 90], [18] * 3, [19] * 3]


@pytest.mark.parametrize(
    ("name", "data", "colours"), list(files()), ids=lambda given: f"{given}"[:30]
)
def test_a_bitmap_has_the_colours_of_its_samples(
    name: str, data: bytes, colours: np.ndarray
) -> None:
    np.testing.assert_allclose(colours_of(data, BACKGROUND), colours, atol=1)


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


@pytest.mark.parametrize("transparent", [None, 3])
def test_a_gif_has_the_colours_of_its_palette(transparent: int | None) -> None:
    rng = np.random.default_rng(1)
    indices, palette = rng.integers(0, 16, (9, 11), np.uint8), rng.integers(0, 256, (16, 3))
    image = Image.fromarray(indices).convert("P")
    image.putdata(indices.ravel().tolist())
    image.putpalette(palette.ravel().tolist())
    given = {} if transparent is None else {"transparency": transparent}
    alpha = np.where(indices == transparent, 0, 255)[..., None]
    check(saved(image, "GIF", **given), np.concatenate([palette[indices], alpha], -1))


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
        ("YCbCr", (150, 90, 160), (195, 140, 83)),
        ("CMYK", (255, 0, 0, 0), (0, 255, 255)),
        ("CMYK", (51, 102, 153, 51), (163, 122, 82)),
    ],
)
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_has_the_colour_that_it_is_of(
    mode: str, sample: Any, colour: tuple[int, int, int], progressive: bool
) -> None:
    """YCbCr by JFIF's equations; CMYK, which Adobe stores inverted, as (255 - C)(255 - K) / 255."""
    data = saved(Image.new(mode, (16, 16), sample), "JPEG", quality=100, progressive=progressive)
    np.testing.assert_allclose(colours_of(data, BACKGROUND), np.full((16, 16, 3), colour), atol=2)
