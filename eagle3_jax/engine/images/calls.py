"""Distribution of images over devices and encoding calls."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from eagle3_jax.engine.images.layout import ImageLayout, NewImage


class EncodingCall(NamedTuple):
    """Images that each device encodes, in arrays of `size` patches."""

    parts: list[list[NewImage]]
    size: int


def divide(new: Sequence[NewImage], layout: ImageLayout, *, exact: bool) -> Iterator[EncodingCall]:
    """Yield calls that encode all images, the largest first, balanced over devices.

    With `exact` no image shares an array, so its bits depend on itself alone.
    """
    images = sorted(new, key=_patches, reverse=True)
    if exact:
        for size, alike in groupby(images, lambda image: layout.bucket_of(_patches(image))):
            alone = [[image] for image in alike]
            for first in range(0, len(alone), layout.devices):
                yield EncodingCall(alone[first : first + layout.devices], size)
        return
    parts: list[list[NewImage]] = [[] for _ in range(layout.devices)]
    for image in images:
        least = min(parts, key=_total)
        if least and _total(least) + _patches(image) > layout.most_patches:
            yield EncodingCall(parts, layout.bucket_of(max(map(_total, parts))))
            parts = [[] for _ in range(layout.devices)]
            least = parts[0]
        least.append(image)
    if parts[0]:
        yield EncodingCall(parts, layout.bucket_of(max(map(_total, parts))))


def _total(part: list[NewImage]) -> int:
    return sum(map(_patches, part))


def _patches(image: NewImage) -> int:
    return len(image.item.patches)
