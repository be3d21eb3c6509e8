"""Train a small vision pair with its draft on generated pictures."""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from rich.console import Console

from convert import Tokenizer, load_target, load_tokenizer, load_vision, save_hf
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.training.distillation import TargetHead
from eagle3_jax.training.draft import (
    DraftModels,
    DraftRecipe,
    draft_step,
    draft_update,
    split_draft,
)
from eagle3_jax.training.loop import StepFunction, TrainState
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.placement import Placement, with_whole_embedding
from eagle3_tools.make_demo.pictures import recipe
from eagle3_tools.make_demo.pictures.accuracy import held_out_accuracy
from eagle3_tools.make_demo.pictures.batches import PictureBatches, picture_places
from eagle3_tools.make_demo.target import made_tokenizer, write_limits
from eagle3_tools.make_demo.training.vision import (
    VisionTargetModels,
    image_text_features,
    scaled_to_fan_in,
    vision_step,
    with_image_rows,
)
from serve.text_table import text_table
from serve.train.draft_model import export_draft
from serve.train.run import new_output, run

TARGET_DIR, DRAFT_DIR = "target", "draft"
"""Subdirectories of the output."""


def train_vision(options: argparse.Namespace) -> bool:
    """Train target and vision, print their held-out accuracy, train the draft; False if stopped."""
    directory = options.output / TARGET_DIR
    given = _part(options, TARGET_DIR, options.steps)
    with new_output(given):
        if not _train_target(given):
            return False
    target = load_target(directory, dtype=jnp.float32)
    vision = load_vision(directory, dtype=jnp.float32)
    tokenizer = load_tokenizer(directory)
    right = held_out_accuracy(target, vision, tokenizer, options.eval_pictures)
    table = text_table("Held-out questions", ["topic", "right"], left=("topic",))
    for topic, share in right.items():
        table.add_row(topic, f"{share:.1%}")
    Console().print(table)
    given = _part(options, DRAFT_DIR, options.draft_steps)
    with new_output(given):
        return _train_draft(given, target, vision, tokenizer)


def _part(options: argparse.Namespace, name: str, steps: int) -> argparse.Namespace:
    """Return the options of a separate run in its own subdirectory."""
    return argparse.Namespace(**{**vars(options), "output": options.output / name, "steps": steps})


def _train_target(options: argparse.Namespace) -> bool:
    tokenizer = made_tokenizer(options.output, recipe.make_tokenizer)
    rngs = nnx.Rngs(options.seed)
    target, text = nnx.split(KimiTarget(recipe.TARGET, rngs=rngs, dtype=jnp.float32))
    vision, seen = nnx.split(VisionModel(recipe.VISION, rngs=rngs, dtype=jnp.float32))
    params = scaled_to_fan_in((text, seen))
    optimizer = adamw(options.learning_rate, options.steps)
    state = TrainState(params, optimizer.init(params))
    step = vision_step(optimizer, VisionTargetModels(target, vision, picture_places()))
    outcome, _ = run(options, state, step, PictureBatches(tokenizer, options.seed))
    if outcome.step < options.steps:
        return False
    text, seen = outcome.state.params
    save_hf(nnx.merge(target, text), options.output, vision=nnx.merge(vision, seen))
    write_limits(options.output, recipe.TARGET)
    return True


def _train_draft(
    options: argparse.Namespace, target: Target, vision: VisionModel, tokenizer: Tokenizer
) -> bool:
    draft = Eagle3Draft(
        recipe.DRAFT, rngs=nnx.Rngs(options.seed + 1), embed_tokens=target.embed_tokens
    )
    shared = {"embed_tokens"}
    graphdef, params, rest = split_draft(with_whole_embedding(draft, target), shared)
    params = scaled_to_fan_in(params)
    optimizer = adamw(options.learning_rate, options.steps)
    step = _draft_step(optimizer, graphdef, rest, target, vision)
    state = TrainState(params, optimizer.init(params))
    outcome, _ = run(options, state, step, PictureBatches(tokenizer, options.seed + 1))
    if outcome.step < options.steps:
        return False
    trained = nnx.merge(graphdef, outcome.state.params, rest)
    trained.embed_tokens = target.embed_tokens
    export_draft(trained, target, shared, options.output)
    return True


def _draft_step(
    optimizer: Any, graphdef: Any, rest: Any, target: Target, vision: VisionModel
) -> StepFunction:
    """Return a step on the target's distributions for conversations with their pictures."""
    target_head, target_head_state = nnx.split(TargetHead(target))
    update = draft_update(optimizer, DraftModels(graphdef, target_head), DraftRecipe())
    run_target = image_text_features(target, recipe.DRAFT.aux_layer_ids)
    step = draft_step(update, run_target, (rest, target_head_state), Placement(None))
    places = picture_places()
    show = jax.jit(lambda seen, batch: with_image_rows(target, seen, places, batch))
    return lambda state, batch: step(state, show(vision, batch))
