"""The released rule of image sizes, with the resampling that the model was trained with."""

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eagle3_jax.config.vision import VisionConfig

if TYPE_CHECKING:
    from PIL import Image


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
