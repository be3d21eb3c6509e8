"""Layout of images: their distribution over devices and encoding calls, arrays, feature rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.mesh import DEVICES, mesh_of, parts
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.vision.encode import ImageBatch
from eagle3_jax.vision.item import ImageItem
from eagle3_jax.vision.packing import bucket_of, buckets_up_to, largest_bucket, pack_images

NewImages = Sequence["NewImage"]


class NewImage(NamedTuple):
    """An image to encode, and the rows of its features."""

    item: ImageItem
    rows: Int[np.ndarray, " tokens"]


@dataclass(frozen=True)
class ImageLayout:
    """Layout of an engine's images: features of `capacity` tokens, and one scratch row after them.

    `devices` is the number of devices of a replica that divide the images of a call; each gets all
    features. It is 1 if devices divide the model.
    """

    vision: VisionConfig
    capacity: int
    devices: int = 1

    @classmethod
    def of(
        cls,
        vision: VisionModel,
        target: Target,
        draft: Eagle3Draft | None,
        config: EngineConfig,
    ) -> "ImageLayout":
        """Make the layout of an engine's images; raise ValueError for models that do not match."""
        mesh, sizes = mesh_of(target), vision.config
        ours = sizes.text_hidden_size, sizes.media_placeholder_token_id
        wanted = target.config.hidden_size, target.config.media_placeholder_token_id
        if ours != wanted:
            raise ValueError(
                "the vision model belongs to another target: its features' width and placeholder "
                f"are {ours}, the target's {wanted}"
            )
        mode = "weights" if vision.split else "data"
        if mode != config.mm_encoder_tp_mode:
            raise ValueError(
                f"mm_encoder_tp_mode is {config.mm_encoder_tp_mode}, and the vision model was made "
                f"for {mode}: load_vision(..., split={not vision.split})"
            )
        seeing = draft if config.mm_draft_embedding == "target" else None
        if seeing and seeing.config.hidden_size != target.config.hidden_size:
            raise ValueError(
                "mm_draft_embedding target needs a draft as wide as the target, "
                f"{target.config.hidden_size}; got {seeing.config.hidden_size}: leave it at pad"
            )
        # A chunk may touch its own tokens and the remaining tokens of two images.
        reach = config.prefill_chunk + 2 * sizes.most_image_tokens
        capacity = config.mm_encoder_cache_tokens or reach
        return cls(sizes, capacity, 1 if mesh is None or vision.split else parts(mesh, DEVICES))

    @property
    def rows(self) -> int:
        """Number of feature rows, including scratch."""
        return self.capacity + 1

    @property
    def most_patches(self) -> int:
        """Patches of the largest accepted image, and the maximum that a device encodes per call."""
        return largest_bucket(self.vision, self.capacity)

    def bucket_of(self, patches: int) -> int:
        return bucket_of(patches, self.vision.token_patches)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Array sizes in patches, ascending."""
        return buckets_up_to(self.most_patches, self.vision.token_patches)

    def pack(self, parts: Sequence[NewImages], size: int) -> ImageBatch:
        """Pack each device's images into arrays of `size` patches; missing parts are empty."""
        given = [*parts, *[()] * (self.devices - len(parts))]
        packed = [pack_images([new.item for new in part], size, self.vision) for part in given]
        rows = np.full((self.devices, size // self.vision.token_patches), self.capacity, np.int32)
        for own, part in zip(rows, given, strict=True):
            used = np.concatenate([np.zeros(0, np.int32), *(new.rows for new in part)])
            own[: len(used)] = used
        columns = zip(*(one.places for one in packed), strict=True)
        # NumPy arrays stand in for device arrays until they are sent.
        patches: Any = np.stack([one.patches for one in packed])
        places: list[Any] = list(map(np.stack, columns))
        sent: Any = rows
        return ImageBatch(patches, PatchPositions(*places), sent)


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
