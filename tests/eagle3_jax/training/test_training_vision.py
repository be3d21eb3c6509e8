"""Training and serving compute the same features of images and put them at the same places."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_vision
from flax import nnx
from tiny_pair import TARGET

from eagle3_jax import ImageItem, encode_images
from eagle3_jax.config.vision import PixelConfig
from eagle3_jax.full_pass import forward
from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.training.loop import TrainState
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.packing import PackedBatch
from eagle3_jax.vision.packing import pack
from eagle3_tools.make_demo.training import target_pass as dispatch
from eagle3_tools.make_demo.training.target_pass import target_pass
from eagle3_tools.make_demo.training.vision import (
    ImageTextBatch,
    VisionTargetModels,
    vision_step,
    with_image_rows,
)

IMAGE, GRID, TOKENS = 7, (1, 4, 6), 6
VISION = replace(
    tiny_vision.VISION,
    num_hidden_layers=2,
    media_placeholder_token_id=IMAGE,
    pixels=PixelConfig(),
)


def models() -> tuple[KimiTarget, VisionModel]:
    target = KimiTarget(replace(TARGET, media_placeholder_token_id=IMAGE), rngs=nnx.Rngs(0))
    return target, VisionModel(VISION, rngs=nnx.Rngs(1))


def pictures() -> list[ImageItem]:
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (3, 24, 3, 2, 2), np.uint8)
    return [ImageItem(own, GRID, TOKENS) for own in patches]


def batch() -> tuple[ImageTextBatch, PatchPositions]:
    """Rows in which a picture begins at different places."""
    rng, length = np.random.default_rng(1), 14
    ids = rng.integers(8, 40, (3, length)).astype(np.int32)
    for row, start in enumerate((0, 3, 8)):
        ids[row, start : start + TOKENS] = IMAGE
    where = np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape)
    text = PackedBatch(ids, np.ones_like(ids), where, (ids != IMAGE).astype(np.float32))
    packed = [pack([item], VISION) for item in pictures()]
    places = PatchPositions(*(column[:24] for column in packed[0].places))
    return ImageTextBatch(text, np.stack([each.patches[:24] for each in packed])), places


def test_the_training_pass_is_the_pass_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "CAPACITY", 100.0)
    target, vision = models()
    shown, places = batch()
    rows = with_image_rows(target, vision, places, shown)
    logits = target.logits(nnx.jit(target_pass)(target, rows).hidden)
    features = encode_images(vision, pictures())
    served = forward(target, shown.text.token_ids, image_features=features).logits
    np.testing.assert_allclose(logits, served, atol=2e-4)
    blind = forward(target, shown.text.token_ids).logits
    assert np.abs(blind - served).max() > 0.01


def test_weights_decay_and_biases_do_not() -> None:
    params = {name: jnp.ones((2, 2)) for name in ("kernel", "key_bias")} | {"scale": jnp.ones(2)}
    optimizer = adamw(1e-2, 10, warmup=1)
    state = TrainState(params, optimizer.init(params))
    for _ in range(3):
        nothing = jax.tree.map(jnp.zeros_like, params)
        updates, moments = optimizer.update(nothing, state.opt_state, state.params)
        state = TrainState(optax.apply_updates(state.params, updates), moments)
    decayed = {name for name, leaf in state.params.items() if (leaf < 1).all()}
    assert decayed == {"kernel"}


def test_a_step_moves_every_parameter_and_lowers_the_loss() -> None:
    target, vision = models()
    shown, places = batch()
    (text_graph, text), (vision_graph, seen) = nnx.split(target), nnx.split(vision)
    optimizer = adamw(3e-3, 30, warmup=1)
    state = TrainState((text, seen), optimizer.init((text, seen)))
    step = vision_step(optimizer, VisionTargetModels(text_graph, vision_graph, places))
    first, losses = jax.tree.map(np.asarray, seen), []
    for _ in range(12):
        state, metrics = step(state, shown)
        losses.append(float(metrics.loss))
    assert losses[-1] < 0.8 * losses[0]
    for before, after in zip(jax.tree.leaves(first), jax.tree.leaves(state.params[1]), strict=True):
        assert np.abs(np.asarray(before) - np.asarray(after)).max() > 0
