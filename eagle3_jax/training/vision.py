"""Trains a small target that sees: tower, projector and text model together."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array

from eagle3_jax.layers.linear import STD
from eagle3_jax.layers.patch_positions import Places
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.training.loop import StepFunction, TrainState
from eagle3_jax.training.packing import Features, PackedBatch
from eagle3_jax.training.target import TargetMetrics, balance, target_loss
from eagle3_jax.training.target_pass import target_pass
from pallas_kernels.dispatch import prefer

LOOKED_UP, CONVOLUTION, JOINT = "embed_tokens", "patch_embed']['proj", "wqkv"
"""Parts of the paths of what is multiplied with nothing, and of what has all dimensions but the
first as inputs."""


class PictureBatch(NamedTuple):
    """Conversations, each in a row of its own and about one picture.

    patches: uint8 [rows, n, 3, p, p], those of a token together; all pictures are of one grid.
    """

    text: PackedBatch
    patches: np.ndarray | jax.Array


class SightedModels(NamedTuple):
    """Structures of a target and its vision, and where the patches of a picture are."""

    target: nnx.GraphDef
    vision: nnx.GraphDef
    places: Places


def scaled_to_inputs(params: Any) -> Any:
    """Drawn parameters with a standard deviation of inputs ** -0.5, so that what a module adds is
    about as large as what it reads. Of a kernel, or a stack of them, inputs are the last dimension
    but one; of the joint one of heads the first."""

    def scaled(path: tuple[Any, ...], leaf: Array) -> Array:
        name = jax.tree_util.keystr(path)
        if leaf.ndim < 2 or LOOKED_UP in name:
            return leaf
        inputs = leaf.shape[0] if JOINT in name else leaf.shape[-2]
        inputs = leaf[0].size if CONVOLUTION in name else inputs
        return leaf * (inputs**-0.5 / STD)

    return jax.tree_util.tree_map_with_path(scaled, params)


def vision_step(optimizer: optax.GradientTransformation, models: SightedModels) -> StepFunction:
    """The update of the parameters of target and vision, a pair."""

    def update(state: TrainState, batch: PictureBatch) -> tuple[TrainState, TargetMetrics]:
        def loss_of(params: Any):
            target = nnx.merge(models.target, params[0])
            vision = nnx.merge(models.vision, params[1])
            return target_loss(target, with_pictures(target, vision, models.places, batch))

        (loss, (accuracy, loads)), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        target = nnx.merge(models.target, params[0])
        balance(target, loads)
        imbalance = jnp.max(loads / jnp.mean(loads, axis=1, keepdims=True))
        metrics = TargetMetrics(loss, accuracy, imbalance)
        return TrainState((nnx.state(target), params[1]), opt_state), metrics

    compiled = jax.jit(update, donate_argnums=0)

    def step(state: TrainState, batch: PictureBatch) -> tuple[TrainState, TargetMetrics]:
        with prefer("reference"):  # kernels have no derivatives
            return compiled(state, batch)

    return step


def with_pictures(
    target: Target, vision: VisionModel, places: Places, batch: PictureBatch
) -> PackedBatch:
    """The conversations with the rows that their pictures have in place of placeholders."""
    features: Array = jax.vmap(lambda patches: vision(patches, places))(jnp.asarray(batch.patches))
    is_image = jnp.asarray(batch.text.token_ids) == target.config.media_placeholder_token_id
    number = jnp.clip(jnp.cumsum(is_image, axis=1) - 1, 0, features.shape[1] - 1)
    rows = jnp.take_along_axis(features, number[..., None], axis=1)
    return batch.text._replace(image_rows=rows)


def picture_features(
    target: Target, aux_layer_ids: Sequence[int]
) -> Callable[[PackedBatch], Features]:
    """What the target shows a draft of conversations whose rows of pictures are there."""
    graphdef, params = nnx.split(target)

    @jax.jit
    def run(params: Any, batch: PackedBatch) -> Features:
        out = target_pass(nnx.merge(graphdef, params), batch)
        aux = jnp.concatenate([out.streams[layer] for layer in aux_layer_ids], axis=-1)
        return Features(aux, out.hidden)

    def features(batch: PackedBatch) -> Features:
        with prefer("reference"):  # the pass of training
            return run(params, batch)

    return features
