"""Images in a server's memory, and how small the detail that a client asks for makes them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from seeing import data_url, picture, vision_config

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.vision.item import ImageItem
from serve.images.errors import ImagesBusy
from serve.images.options import ImageOptions
from serve.images.reader import LOW_SIDE, ImageReader, KeptImages
from serve.images.sources import ImageSource

BYTES = 12


def item(name: bytes) -> ImageItem:
    return ImageItem(np.zeros((1, 3, 2, 2), np.uint8), (1, 1, 1), 1, name)


def test_the_image_used_longest_ago_goes_first() -> None:
    kept = KeptImages(most_kept=2 * BYTES)
    for name in (b"a", b"b"):
        kept.put(item(name))
    assert kept.get(b"a")
    kept.put(item(b"c"))
    assert [kept.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]


def test_requests_hold_as_many_bytes_as_there_is_room_for() -> None:
    kept = KeptImages(most_kept=BYTES, most_held=BYTES)
    held = [kept.put(item(name)) for name in (b"a", b"b")]
    with pytest.raises(ImagesBusy):
        kept.put(item(b"c"))
    assert kept.put(item(b"a")) is held[0]


class Decoder:
    """Notes how many patches an image may have."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    async def decode(
        self, data: bytes, config: VisionConfig, digest: bytes, client: str
    ) -> tuple[ImageItem, int]:
        self.limits.append(config.pixels.in_patch_limit)
        return item(bytes(len(self.limits))), 1


def test_low_detail_has_as_many_patches_as_a_small_square_and_high_as_the_model_takes() -> None:
    async def run(work: Callable[[], Any]) -> Any:
        return work()

    config, decoder = vision_config(), Decoder()
    config = replace(config, pixels=replace(config.pixels, in_patch_limit=4096))
    given: Any = (config, ImageOptions(), run, None, decoder)
    reader, url = ImageReader(*given), data_url(picture())
    for detail in ("low", "high", "auto"):
        asyncio.run(reader.read([ImageSource(url, cast(Any, detail))]))
    assert decoder.limits == [(LOW_SIDE // config.patch_size) ** 2, 4096, 4096]
