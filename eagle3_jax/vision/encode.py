"""Encoding of images to features, several per program, for callers and for prefill."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, UInt8

from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.mesh import DEVICES, mesh_of, on_every_device
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.vision.item import ImageItem
from eagle3_jax.vision.packing import Packed, batches, pack

MOST_PATCHES = 16384
"""Patches that are packed into one call; a single item may have more."""


def encode_images(
    vision: VisionModel, items: Sequence[ImageItem]
) -> list[Float[Array, "_ hidden"]]:
    """Encode each item to float32 features, one row per token, in the given order.

    Items are packed, up to 16384 patches a call, into arrays of few sizes: one program per size,
    and one more if an item has several frames. Items never attend to each other. Raises ValueError
    for items that do not fit the model.
    """
    found: list[Array] = []
    for batch in batches(items, MOST_PATCHES):
        packed = pack(batch, vision.config)
        features = _encode(vision, packed, mesh=mesh_of(vision))
        ends = np.cumsum([item.num_tokens for item in batch])
        found += [features[e - i.num_tokens : e] for e, i in zip(ends, batch, strict=True)]
    return found


@nnx.jit(static_argnames=("mesh",))
def _encode(
    vision: VisionModel,
    packed: Packed,
    mesh: Mesh | None,
) -> Float[Array, "rows text"]:
    def run(vision: VisionModel, *inputs: Any) -> Array:
        return vision(*inputs)

    return on_every_device(run, mesh, vision, PartitionSpec())(*packed)


class ImageBatch(NamedTuple):
    """Packed images, one part per device, all of one size, and the rows of their tokens.

    `patches` and `places` are those of `VisionModel.__call__` with a leading axis of devices.
    `rows` has each token's row in `DecodeState.image_features`, scratch for padding.
    """

    patches: UInt8[Array, "devices n 3 p p"]
    places: PatchPositions
    rows: Int[Array, "devices tokens"]


def store_features(
    vision: VisionModel, kept: Float[Array, "rows hidden"], batch: ImageBatch
) -> Float[Array, "rows hidden"]:
    """Add these images' features to the kept ones; each device encodes a part and gets all."""
    devices = len(batch.patches)
    own = 0 if devices == 1 else lax.axis_index(DEVICES)
    features = vision(batch.patches[own], PatchPositions(*(column[own] for column in batch.places)))
    if devices > 1:
        features = lax.all_gather(features, DEVICES, tiled=True)
    rows = batch.rows.reshape(-1)
    return kept.at[rows].set(features.astype(kept.dtype), mode="promise_in_bounds")
