"""The tiny pair with eyes: images of a few tokens that change what is answered."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from tiny import HIDDEN, TARGET, VOCAB, tiny_draft, tiny_target

from eagle3_jax.config.vision import PixelConfig, VisionConfig
from eagle3_jax.engine import Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.vision.item import ImageItem, PlacedImage

PAD = VOCAB - 1
VISION = VisionConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    pos_emb_height=4,
    pos_emb_width=4,
    pos_emb_time=4,
    patch_size=2,
    text_hidden_size=HIDDEN,
    merge_size=2,
    projector_ln_eps=1e-5,
    media_placeholder_token_id=PAD,
    pixels=PixelConfig(in_patch_limit=64, patch_limit_on_one_side=16),
)


@cache
def seeing_target() -> Target:
    return tiny_target(config=replace(TARGET, media_placeholder_token_id=PAD))


@cache
def seeing_draft() -> Eagle3Draft:
    return tiny_draft(seeing_target())


@cache
def tiny_vision() -> VisionModel:
    return drawn(VISION)


def drawn(config: VisionConfig, *, split: bool = False) -> VisionModel:
    """A tower whose features are about as large as embeddings. split: for devices to divide it."""
    vision = VisionModel(config, rngs=nnx.Rngs(1), dtype=jnp.float32, split=split)
    rng = np.random.default_rng(1)

    def draw(leaf: Any) -> Any:
        return jnp.asarray(rng.normal(size=leaf.shape) / max(1, leaf.shape[0]) ** 0.5, leaf.dtype)

    nnx.update(vision, nnx.map_state(lambda _, leaf: draw(leaf), nnx.state(vision)))
    return vision


def image(seed: int, rows: int = 4, columns: int = 6) -> ImageItem:
    """An image of random colours, drawn from `seed`."""
    patches = np.random.default_rng(seed).integers(0, 256, (rows * columns, 3, 2, 2), np.uint8)
    tokens = rows * columns // 4
    return ImageItem(patches, (1, rows, columns), tokens, sha256(patches.tobytes()).digest())


def with_images(
    name: str, parts: Sequence[ImageItem | list[int]], sampling: SamplingParams, **fields: Any
) -> Request:
    """A prompt of images and token ids in their order."""
    ids: list[int] = []
    placed: list[PlacedImage] = []
    for part in parts:
        if isinstance(part, ImageItem):
            placed.append(PlacedImage(part, len(ids)))
            ids += [PAD] * part.num_tokens
        else:
            ids += part
    return Request(name, ids, sampling, images=tuple(placed), **fields)
