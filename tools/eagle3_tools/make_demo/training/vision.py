"""Training of a small target with vision: tower, projector and text model together."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array

from eagle3_jax.layers.linear import STD
from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.training.loop import StepFunction
from eagle3_jax.training.packing import Features, PackedBatch
from eagle3_tools.make_demo.training.target import balanced, balanced_step, target_loss
from eagle3_tools.make_demo.training.target_pass import target_pass
from pallas_kernels.dispatch import prefer

LOOKED_UP, CONVOLUTION, JOINT = "embed_tokens", "patch_embed']['proj", "wqkv"
"""Parts of parameter paths: a table without a product, and kernels whose inputs are all dimensions
but the first, or the first dimension."""


class ImageTextBatch(NamedTuple):
    """Conversations about one picture each, one per row, all with the same grid.

    `patches` are uint8 [rows, n, 3, p, p], with those of a token adjacent.
    """

    text: PackedBatch
    patches: np.ndarray | jax.Array


class VisionTargetModels(NamedTuple):
    """Graph definitions of a target and its vision model, and the places of a picture's patches."""

    target: nnx.GraphDef
    vision: nnx.GraphDef
    places: PatchPositions


def scaled_to_fan_in(params: Any) -> Any:
    """Scale initial parameters to a deviation of inputs ** -0.5, so outputs are as large as inputs.

    A kernel's inputs are its last dimension but one, those of the joint QKV kernel the first.
    """

    def scaled(path: tuple[Any, ...], leaf: Array) -> Array:
        name = jax.tree_util.keystr(path)
        if leaf.ndim < 2 or LOOKED_UP in name:
            return leaf
        inputs = leaf.shape[0] if JOINT in name else leaf.shape[-2]
        inputs = leaf[0].size if CONVOLUTION in name else inputs
        return leaf * (inputs**-0.5 / STD)

    return jax.tree_util.tree_map_with_path(scaled, params)


def vision_step(
    optimizer: optax.GradientTransformation, models: VisionTargetModels
) -> StepFunction:
    """Make the step that updates the parameters of a (target, vision) pair."""

    def loss_of(params: Any, batch: ImageTextBatch):
        target = nnx.merge(models.target, params[0])
        vision = nnx.merge(models.vision, params[1])
        return target_loss(target, with_image_rows(target, vision, models.places, batch))

    def balanced_pair(params: Any, loads: Array) -> Any:
        return balanced(models.target, params[0], loads), params[1]

    return balanced_step(optimizer, loss_of, balanced_pair)


def with_image_rows(
    target: Target, vision: VisionModel, places: PatchPositions, batch: ImageTextBatch
) -> PackedBatch:
    """Add the pictures' feature rows, which replace placeholders, to the conversations."""
    features: Array = jax.vmap(lambda patches: vision(patches, places))(jnp.asarray(batch.patches))
    is_image = jnp.asarray(batch.text.token_ids) == target.config.media_placeholder_token_id
    number = jnp.clip(jnp.cumsum(is_image, axis=1) - 1, 0, features.shape[1] - 1)
    rows = jnp.take_along_axis(features, number[..., None], axis=1)
    return batch.text._replace(image_rows=rows)


def image_text_features(
    target: Target, aux_layer_ids: Sequence[int]
) -> Callable[[PackedBatch], Features]:
    """Return a function that computes target features of batches with image rows."""
    graphdef, params = nnx.split(target)

    @jax.jit
    def run(params: Any, batch: PackedBatch) -> Features:
        out = target_pass(nnx.merge(graphdef, params), batch)
        aux = jnp.concatenate([out.streams[layer] for layer in aux_layer_ids], axis=-1)
        return Features(aux, out.hidden)

    def features(batch: PackedBatch) -> Features:
        with prefer("reference"):  # use the pass of training
            return run(params, batch)

    return features
