"""Features of images into the rows that prefills read them from."""

from typing import NamedTuple

from jax import lax
from jaxtyping import Array, Float, Int, UInt8

from eagle3_jax.layers.patch_positions import Places
from eagle3_jax.mesh import DEVICES
from eagle3_jax.models.vision import VisionModel


class ImageBatch(NamedTuple):
    """Packed images, a part for each device, all of one size, and the rows of their tokens.

    patches, places: as of `VisionModel.__call__`, behind an axis of devices. rows: of each token in
    `DecodeState.image_features`; scratch where there is none.
    """

    patches: UInt8[Array, "devices n 3 p p"]
    places: Places
    rows: Int[Array, "devices tokens"]


def keep_features(
    vision: VisionModel, kept: Float[Array, "rows hidden"], batch: ImageBatch
) -> Float[Array, "rows hidden"]:
    """The kept features with those of these images: every device encodes its part, and gets the
    others'."""
    devices = len(batch.patches)
    own = 0 if devices == 1 else lax.axis_index(DEVICES)
    features = vision(batch.patches[own], Places(*(column[own] for column in batch.places)))
    if devices > 1:
        features = lax.all_gather(features, DEVICES, tiled=True)
    rows = batch.rows.reshape(-1)
    return kept.at[rows].set(features.astype(kept.dtype), mode="promise_in_bounds")
