"""Encoding of images to features, several per program."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from eagle3_jax.mesh import mesh_of, on_every_device
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
