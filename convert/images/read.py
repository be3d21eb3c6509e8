"""Read image files into `ImageItem`s."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from convert.images.decode import MAX_PIXELS, WHITE, Colour, decode
from convert.images.resize import cut, sizes_of
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.vision.item import ImageItem


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
