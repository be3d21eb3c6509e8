"""Random requests with images, and the positions in images at which prefill chunks begin."""

from dataclasses import replace
from typing import Any

import numpy as np
from tiny import VOCAB
from tiny_vision import PAD, image, with_images
from traffic import random_options

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.chunk_plan import ChunkPlan

SHOWN = [image(1, 8, 6), image(2, 8, 6), image(3, 2, 2), image(4, 4, 6), image(5, 2, 16)]
"""Images of 12, 12, 1, 6 and 8 tokens."""
CUTS: set[int] = set()
"""Offsets in images of 12 tokens at which chunks began."""


def image_requests(rng: np.random.Generator, count: int) -> list[Request]:
    """Return prompts with up to two images and often a common prefix; 1 to 40 tokens.

    A placeholder ends an answer, so that a rescored sequence has those of its images only.
    """
    common = rng.integers(0, VOCAB - 1, 8).tolist()

    def prompt() -> list[Any]:
        parts: list[Any] = [common[: rng.integers(0, 9)]]
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            parts += [SHOWN[rng.integers(len(SHOWN))], words(0, 2)]
        return [*parts, words(1, 3)]

    def words(least: int, most: int) -> list[int]:
        return rng.integers(0, VOCAB - 1, rng.integers(least, most + 1)).tolist()

    def options() -> Any:
        drawn_options = random_options(rng)
        stops = [*drawn_options.stop_token_ids, PAD]
        return replace(drawn_options, stop_token_ids=stops)

    return [with_images(str(i), prompt(), options()) for i in range(count)]


def note_cuts(engine: Engine) -> None:
    """Record in CUTS where the engine's chunks begin within images."""
    scheduler = engine._replicas.first
    if "prepare_images" in vars(scheduler):
        return
    CUTS.clear()
    bring = scheduler.prepare_images

    def noted(chunk: ChunkPlan) -> ChunkPlan:
        for placed in chunk.sequence.request.images:
            if placed.item.num_tokens == 12 and placed.start < chunk.start < placed.end:
                CUTS.add(chunk.start - placed.start)
        return bring(chunk)

    vars(scheduler)["prepare_images"] = noted
