"""Turn image files into patches by Kimi-K2.5's released rule: decode, resize, pad, cut.

Files are of a closed list of formats and within a pixel limit.
"""

import hashlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eagle3_jax.config.published import brief
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.vision.item import ImageItem

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


def read_image(
    data: bytes,
    config: VisionConfig,
    *,
    exif: bool = True,
    background: Colour | None = WHITE,
    max_pixels: int = MAX_PIXELS,
) -> ImageItem:
    """Read an image file (PNG, JPEG, WEBP, GIF, BMP) as input of the vision tower.

    The defaults match vLLM 0.33: EXIF orientation applied, transparency on white. `exif=False,
    background=None` matches Moonshot's code. Raises ValueError for damaged data, other formats,
    more than `max_pixels` pixels, and sizes without position embeddings.
    """
    return _item([data], config, None, exif, background, max_pixels)


def read_frames(
    frames: Sequence[bytes],
    config: VisionConfig,
    *,
    exif: bool = True,
    background: Colour | None = WHITE,
    max_pixels: int = MAX_PIXELS,
) -> ImageItem:
    """Read neighbouring video frames of one size as one item (a chunk).

    Raises as `read_image`, and ValueError for more frames than the model has positions for.
    """
    if not 1 <= len(frames) <= config.pos_emb_time:
        raise ValueError(f"a chunk has 1 to {config.pos_emb_time} frames, got {len(frames)}")
    return _item(frames, config, len(frames), exif, background, max_pixels)


def digest_of(
    files: Sequence[bytes],
    config: VisionConfig,
    *,
    chunk: bool = False,
    exif: bool = True,
    background: Colour | None = WHITE,
) -> bytes:
    """Return a SHA-256 of the files and all settings that affect patches, without decoding."""
    # Decoders of another Pillow version may round differently.
    from PIL import __version__

    processing = [asdict(config), chunk, exif, background, __version__, list(map(len, files))]
    digest = hashlib.sha256(json.dumps(processing, sort_keys=True).encode())
    for data in files:
        digest.update(data)
    return digest.digest()


def _item(
    files: Sequence[bytes],
    config: VisionConfig,
    frames: int | None,
    exif: bool,
    background: Colour | None,
    max_pixels: int,
) -> ImageItem:
    images = [decode(f, exif=exif, background=background, max_pixels=max_pixels) for f in files]
    if len(found := {image.size for image in images}) > 1:
        raise ValueError(f"the frames of a chunk must have one size, got {sorted(found)}")
    sizes = sizes_of(*images[0].size, config.pixels.limit(frames), config)
    patches = np.stack([cut(image, sizes, config.patch_size) for image in images])
    times, rows, columns = patches.shape[:3]
    if max(rows, columns) > config.most_side:
        raise ValueError(
            f"an image may have {config.most_side} patches on one side, got "
            f"{rows} x {columns}; send one with sides less far apart"
        )
    return ImageItem(
        np.ascontiguousarray(patches).reshape(-1, *patches.shape[3:]),
        (times, rows, columns),
        rows * columns // config.token_patches,
        digest_of(files, config, chunk=frames is not None, exif=exif, background=background),
    )


class Sizes(NamedTuple):
    """Pixels of the resized image, and of the black border to its right and below."""

    width: int
    height: int
    pad_width: int
    pad_height: int


def sizes_of(width: int, height: int, limit: int, config: VisionConfig) -> Sizes:
    """Return the size of a width x height image shrunk to at most `limit` patches.

    Images are never enlarged. The border may exceed the limit, as in the released code: 3000 x 3000
    pixels become 4225 tokens where 4096 are the limit.
    """
    p, side = config.patch_size, config.pixels.patch_limit_on_one_side * config.patch_size
    patches = max(1, width // p) * max(1, height // p)
    scale = min(1.0, math.sqrt(limit / patches), side / width, side / height)
    new_w, new_h = (min(max(1, int(size * scale)), side) for size in (width, height))
    step = p * config.merge_size
    return Sizes(new_w, new_h, -new_w % step, -new_h % step)


def resize(image: "Image.Image", width: int, height: int) -> "Image.Image":
    """Resize with Pillow's bicubic filter, columns first, by two calls of one axis each.

    Pillow 13 would take rows first in tall images, which changes bytes by up to 4.
    """
    from PIL import Image

    wide = image.resize((width, image.height), Image.Resampling.BICUBIC)
    return wide.resize((width, height), Image.Resampling.BICUBIC)


def cut(image: "Image.Image", sizes: Sizes, patch: int) -> np.ndarray:
    """Return uint8 patches [rows, columns, 3, patch, patch] of the resized, zero-padded image."""
    pixels = np.asarray(resize(image, sizes.width, sizes.height))
    padded = np.pad(pixels, ((0, sizes.pad_height), (0, sizes.pad_width), (0, 0)))
    rows, columns = padded.shape[0] // patch, padded.shape[1] // patch
    return padded.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)


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
    from PIL import Image

    samples, clear = np.asarray(image), image.info.get("transparency")
    grey = Image.fromarray((samples >> 8).astype(np.uint8))
    if clear is None:
        return grey
    alpha = Image.fromarray(np.where(samples == clear, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))
