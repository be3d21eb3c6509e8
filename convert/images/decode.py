"""Bytes of an image file to RGB, from a closed list of formats and within a limit of pixels."""

import io
from typing import TYPE_CHECKING, NamedTuple

from eagle3_jax.config.brief import brief

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Of a GIF or another animation the first picture counts."""
MAX_PIXELS = 89_478_485
"""Pillow's own bound: a quarter of a GiB in RGB."""
Colour = tuple[int, int, int]
WHITE = (255, 255, 255)


def decode(
    data: bytes, *, exif: bool, background: Colour | None, max_pixels: int = MAX_PIXELS
) -> "Image.Image":
    """The picture in RGB.

    exif: turned as its EXIF orientation says. background: transparency lies on this colour; None
    drops it. Raises ValueError for other formats, more than max_pixels pixels and damaged data;
    nothing is decoded before the size is known.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise _TooLarge(max_pixels, f"got {width} x {height}")
            image.load()
            turned = ImageOps.exif_transpose(image) if exif else image
            return _to_rgb(turned, background)
    except _TooLarge:
        raise
    except Image.DecompressionBombError as error:  # Pillow's own limit, far above.
        raise _TooLarge(max_pixels, "got far more") from error
    except UnidentifiedImageError as error:
        raise ValueError(f"expected an image ({', '.join(FORMATS)}), got none of these") from error
    # Pillow's decoders promise no types of errors for hostile data.
    except Exception as error:
        raise ValueError(
            f"expected an image ({', '.join(FORMATS)}), got data that cannot be decoded: "
            f"{brief(error)}"
        ) from error


class Header(NamedTuple):
    """What an image file says of itself before it is decoded."""

    pixels: int
    media_type: str


def header_of(data: bytes) -> Header:
    """Raises ValueError for what is no image of these formats."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return Header(image.width * image.height, image.get_format_mimetype() or "image/png")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"expected an image ({', '.join(FORMATS)}), got none of these") from error


class _TooLarge(ValueError):
    """The header promises more pixels than are allowed."""

    def __init__(self, most: int, got: str) -> None:
        super().__init__(f"an image may have {most} pixels, {got}: send a smaller one")


def _to_rgb(image: "Image.Image", background: Colour | None) -> "Image.Image":
    from PIL import Image

    if background is None or not image.has_transparency_data:
        return image.convert("RGB")
    picture = image.convert("RGBA")
    below = Image.new("RGB", picture.size, background)
    below.paste(picture, mask=picture.getchannel("A"))
    return below
