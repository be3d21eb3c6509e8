"""The golden image prompts on the target that drafts are made for, as requests."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

from image_goldens import VISION, read_item
from oracle_files import ORACLES

from convert import load_draft, load_target, load_vision
from eagle3_jax import Target, VisionModel
from eagle3_jax.engine import Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.vision.item import PlacedImage

CHECKPOINT = ORACLES / "kimi_bf16"
DRAFTS = {"mha": "draft_mha_bf16", "reduced": "draft_mha_d2t_bf16", "mla": "draft_mla_bf16"}
PROMPTS: dict[str, Any] = json.loads(
    (VISION / "goldens" / "kimi_bf16_image_f32.json").read_text(encoding="utf-8")
)


@cache
def golden_target() -> Target:
    return load_target(CHECKPOINT, dtype="float32")


@cache
def golden_draft(kind: str) -> Eagle3Draft:
    return load_draft(ORACLES / DRAFTS[kind], golden_target(), dtype="float32")


@cache
def golden_vision() -> VisionModel:
    """Its limits are so small that few sizes of arrays are needed; no golden image is beyond."""
    vision = load_vision(CHECKPOINT, dtype="float32")
    pixels = replace(vision.config.pixels, in_patch_limit=32)
    vision.config = replace(vision.config, pixels=pixels)
    return vision


def golden_requests(**options: Any) -> list[Request]:
    """Each golden prompt with its images, greedy unless options say otherwise."""
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 20, "ignore_eos": True} | options)
    return [golden_request(name, sampling) for name in PROMPTS]


def golden_request(name: str, sampling: SamplingParams) -> Request:
    facts, start, placed = PROMPTS[name], 0, []
    ids, config = facts["expanded_ids"], golden_vision().config
    for image in facts["images"]:
        item = read_item(image, config)
        start = ids.index(config.media_placeholder_token_id, start)
        placed.append(PlacedImage(item, start))
        start += item.num_tokens
    return Request(name, ids, sampling, images=tuple(placed))
