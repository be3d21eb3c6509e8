"""Program that encodes images and stores their features for prefill."""

from typing import NamedTuple

from jax import lax
from jaxtyping import Array, Float, Int, UInt8

from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.mesh import DEVICES
from eagle3_jax.models.vision import VisionModel


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
