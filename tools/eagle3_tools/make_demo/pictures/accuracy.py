"""Measure the share of held-out picture questions that a pair answers word for word."""

from collections import defaultdict
from itertools import islice
from typing import Any

import numpy as np

from convert import Tokenizer, read_image
from eagle3_jax import encode_images
from eagle3_jax.full_pass import forward
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_tools.make_demo.pictures.batches import sample_maker
from eagle3_tools.make_demo.pictures.picture import png
from eagle3_tools.make_demo.pictures.questions import Asked, held_out
from eagle3_tools.make_demo.pictures.recipe import ROW_LENGTH, ROWS

OVERALL = "overall"


def held_out_accuracy(
    target: Target, vision: VisionModel, tokenizer: Tokenizer, count: int, seed: int = 0
) -> dict[str, float]:
    """Return the share of `count` questions that are answered right, by topic and overall.

    Every token of an answer must be the most likely one after the question, the picture and the
    tokens before it. An answer in other words counts as wrong.
    """
    asked, right = list(islice(held_out(seed), count)), list[bool]()
    make = sample_maker(tokenizer)
    for first in range(0, count, ROWS):
        right += _answered(target, vision, make, asked[first : first + ROWS])
    found: defaultdict[str, list[bool]] = defaultdict(list)
    for (_, question), answered in zip(asked, right, strict=True):
        found[question.topic].append(answered)
    return {
        **{topic: float(np.mean(found[topic])) for topic in found},
        OVERALL: float(np.mean(right)),
    }


def _answered(target: Target, vision: VisionModel, make: Any, asked: list[Asked]) -> list[bool]:
    """Return whether each question is answered, by one pass of constant shape."""
    samples = [make(question) for _, question in asked]
    ids, wanted = np.zeros((2, ROWS, ROW_LENGTH), np.int32)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.token_ids)] = sample.token_ids
        wanted[row, : len(sample.token_ids)] = sample.wanted
    items = [read_image(png(picture), vision.config) for picture, _ in asked]
    features = encode_images(vision, items)
    logits = forward(target, ids, image_features=features).logits
    chosen = np.argmax(np.asarray(logits)[:, :-1], axis=-1)
    same = (chosen == ids[:, 1:]) | (wanted[:, 1:] == 0)
    return [bool(row) for row in same.all(axis=1)[: len(asked)]]
