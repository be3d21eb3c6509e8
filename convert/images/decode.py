"""Decode image files to RGB, from a closed list of formats and within a pixel limit."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eagle3_jax.config.brief import brief

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Supported formats. Only the first frame of a GIF or other animation is used."""
MAX_PIXELS = 89_478_485
"""Pillow's own limit, a quarter of a GiB in RGB."""
Colour = tuple[int, int, int]
WHITE = (255, 255, 255)
EXPECTED = f"expected an image ({', '.join(FORMATS)}), got"
MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"RIFF": "image/webp",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}
"""First bytes of each format's files -> media type."""


def decode(
    data: bytes, *, exif: bool, background: Colour | None, max_pixels: int = MAX_PIXELS
) -> "Image.Image":
    """Decode an image file to RGB; the size is checked before pixels are decoded.

    `exif` applies the EXIF orientation. `background` is the colour under transparent pixels; None
    drops the alpha channel. Raises ValueError for unsupported formats, damaged data and images of
    more than `max_pixels` pixels.
    """
    from PIL import ImageOps

    with _opened(data, max_pixels) as image:
        _scale_clear_colour(image)
        image.load()
        turned = ImageOps.exif_transpose(image) if exif else image
        return _to_rgb(turned, background)


def count_pixels(data: bytes, max_pixels: int = MAX_PIXELS) -> int:
    """Return the number of pixels that a file's header states; raises ValueError as `decode`."""
    with _opened(data, max_pixels) as image:
        return image.width * image.height


def media_type_of(data: bytes) -> str:
    """Return the media type by a file's first bytes; ValueError for an unsupported format."""
    for start, media_type in MAGIC.items():
        if data.startswith(start):
            return media_type
    raise ValueError(f"{EXPECTED} none of these")


@contextmanager
def _opened(data: bytes, max_pixels: int) -> Iterator["Image.Image"]:
    """Open an image without decoding its pixels.

    Every error, in the caller's decoding too, becomes a ValueError that states what was expected.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        _check_size(_webp_size(data), max_pixels)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image.size, max_pixels)
            yield image
    except (_TooLarge, MemoryError):
        raise
    except Image.DecompressionBombError as error:  # Pillow's own limit, far above.
        raise _TooLarge(max_pixels, "got far more") from error
    except UnidentifiedImageError as error:
        raise ValueError(f"{EXPECTED} none of these") from error
    # Pillow's decoders may raise any type of error for hostile data.
    except Exception as error:
        raise ValueError(f"{EXPECTED} data that cannot be decoded: {brief(error)}") from error


class _TooLarge(ValueError):
    """The header states more pixels than are allowed."""

    def __init__(self, most: int, got: str) -> None:
        super().__init__(f"an image may have {most} pixels, {got}: send a smaller one")


def _check_size(size: tuple[int, int], most: int) -> None:
    width, height = size
    if width * height > most:
        raise _TooLarge(most, f"got {width} x {height}")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return a WebP's size, else (0, 0). Opening one, Pillow allocates eight bytes a pixel."""
    if not data.startswith(b"RIFF"):
        return 0, 0
    match data[12:16]:
        case b"VP8X":
            width, height = data[24:27], data[27:30]
            return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
        case b"VP8L":
            sizes = int.from_bytes(data[21:25], "little")
            return (sizes & 0x3FFF) + 1, (sizes >> 14 & 0x3FFF) + 1
        case _:
            sizes = int.from_bytes(data[26:30], "little")
            return sizes & 0x3FFF, sizes >> 16 & 0x3FFF


def _scale_clear_colour(image: "Image.Image") -> None:
    """Scale the colour that a PNG's tRNS chunk makes transparent to 8 bits.

    Pillow scales only the samples, so that no pixel, or a wrong one, has this colour. It keeps the
    first byte of a 16-bit RGB sample; therefore all pixels with these bytes become transparent.
    """
    from PIL.PngImagePlugin import PngImageFile

    if not isinstance(image, PngImageFile) or not image.tile:
        return
    clear, stored = image.info.get("transparency"), image.tile[0][3]
    if stored in ("L;2", "L;4") and isinstance(clear, int):
        image.info["transparency"] = clear * (85 if stored == "L;2" else 17)
    elif stored == "RGB;16B" and isinstance(clear, tuple):
        image.info["transparency"] = tuple(sample >> 8 for sample in clear)


def _to_rgb(image: "Image.Image", background: Colour | None) -> "Image.Image":
    from PIL import Image

    if image.mode.startswith("I;16"):
        image = _in_8_bits(image)
    if background is None or not image.has_transparency_data:
        return image.convert("RGB")
    picture = image.convert("RGBA")
    below = Image.new("RGB", picture.size, background)
    below.paste(picture, mask=picture.getchannel("A"))
    return below


def _in_8_bits(image: "Image.Image") -> "Image.Image":
    """Convert 16-bit grey to each sample's first byte; Pillow would clip samples to 255, white."""
    import numpy as np
    from PIL import Image

    samples, clear = np.asarray(image), image.info.get("transparency")
    grey = Image.fromarray((samples >> 8).astype(np.uint8))
    if clear is None:
        return grey
    alpha = Image.fromarray(np.where(samples == clear, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))
