"""Kernel calls of a vision tower, which every device holds whole."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from convert.published.vision import abstract_vision
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.layers.patch_positions import PatchPositions
from pallas_kernels.self_check import Call, recorded_calls

PATCHES = 1024
"""Patches of the images in one array: one image of 448 x 448 pixels, or several smaller ones."""


def tower_calls(config: VisionConfig) -> list[Call]:
    """Return the calls of one encoding."""
    graph, weights = nnx.split(abstract_vision(config, jnp.bfloat16))
    column: Any = jax.ShapeDtypeStruct((PATCHES,), jnp.int32)
    side = config.patch_size
    patches = jax.ShapeDtypeStruct((PATCHES, 3, side, side), jnp.uint8)
    places = PatchPositions(*[column] * len(PatchPositions._fields))

    def encode(weights: Any, *images: Any) -> Any:
        return nnx.merge(graph, weights)(*images)

    return recorded_calls(encode, weights, patches, places)
