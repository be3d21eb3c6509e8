"""Published checkpoints as abstract models, built once a session on first use."""

import functools
import json
from typing import Any

import jax.numpy as jnp
from oracle_files import ORACLES

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_tools.plan.compile.training_step import TARGETS, step_options
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from eagle3_tools.plan.planner import read_pair
from eagle3_tools.plan.training.model import TrainingPlan

PUBLISHED = ORACLES / "published"
LAYERS = 61


def published(name: str, kind: str) -> dict[str, Any]:
    """`config` or `manifest` of a checkpoint."""
    return json.loads((PUBLISHED / f"{name}.{kind}.json").read_text(encoding="utf-8"))


@functools.cache
def target(name: str) -> Target:
    """All 61 layers."""
    return target_from_config(published(name, "config"), jnp.bfloat16)


@functools.cache
def draft(name: str) -> Eagle3Draft:
    """For a target of 61 layers."""
    return draft_from_config(published(name, "config"), jnp.bfloat16, num_target_layers=LAYERS)


@functools.cache
def training_plan(draft: str) -> TrainingPlan:
    """A step of this draft beside the first target."""
    options = step_options(PUBLISHED, TARGETS[0], draft)
    return TrainingPlan(options, read_pair(options.pair))


def text_bytes(name: str) -> int:
    """Bytes of the published tensors, without the vision tower and its projector."""
    return _bytes(name, False)


def vision_bytes(name: str) -> int:
    """Those of tower and projector."""
    return _bytes(name, True)


def _bytes(name: str, of_vision: bool) -> int:
    tensors = published(name, "manifest")["tensors"]
    vision = ("vision_tower.", "mm_projector.")
    chosen = (t for t in tensors if t["name"].startswith(vision) == of_vision)
    return sum(t["bytes_each"] * t["count"] for t in chosen)
