"""Answers to prompts with images are those of a whole pass."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from driving import Answer, drive, sizes
from sweeps import sweep
from tiny_vision import (
    VISION,
    drawn,
    image,
    seeing_draft,
    seeing_target,
    tiny_vision,
    with_images,
)

from eagle3_jax import ImageItem, encode_images, forward
from eagle3_jax.config.vision import PixelConfig
from eagle3_jax.engine import Engine, Request
from eagle3_jax.sampling.params import SamplingParams

SHORT, LONG = image(1), image(2, 8, 6)
OTHER = image(3)
"""As large as SHORT."""


def requests() -> list[Request]:
    """Prompts whose logprobs are wanted, with images at every place."""
    stem = [5, 9, 2, 7, 11]
    parts = {
        "one": [stem, SHORT, [3, 4]],
        "other": [stem, OTHER, [3, 4]],
        "none": [[*stem, 95, 95, 95], [3, 4]],
        "two": [SHORT, [1], LONG, [8, 8]],
        "touching": [[2], LONG, OTHER, [6]],
        "twice": [SHORT, stem, SHORT, [1]],
        "first": [LONG, [4]],
        "last": [stem, OTHER],
    }
    sampling = SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1, ignore_eos=True)
    return [with_images(name, part, sampling) for name, part in parts.items()]


def logits(request: Request, answer: Answer) -> np.ndarray:
    """Logits of a whole pass over prompt and answer. Placeholders without an image are text."""
    ids = np.array([request.prompt_ids + answer.token_ids])
    features = encode_images(tiny_vision(), [placed.item for placed in request.images])
    given: Any = {"image_features": features} if features else {}
    return np.asarray(forward(seeing_target(), ids, **given).logits[0])


@pytest.mark.long
def test_logprobs_of_a_prompt_are_those_of_a_whole_pass() -> None:
    models = seeing_target(), seeing_draft()
    answers = drive(Engine(*models, sizes(3), eos_token_ids=(), vision=tiny_vision()), requests())
    for request in requests():
        answer = answers[request.request_id]
        found = logits(request, answer)
        found = found - np.log(np.exp(found).sum(-1, keepdims=True))
        for position, row in enumerate(answer.outputs[-1].prompt_logprobs[1:], 1):
            token = request.prompt_ids[position]
            assert row is not None
            assert row[token].logprob == pytest.approx(found[position - 1, token], abs=1e-4)


def shown(seed: int, merge: int, rows: int, columns: int) -> ImageItem:
    """An image of rows x columns tokens, each of merge x merge patches."""
    count = rows * columns * merge**2
    patches = np.random.default_rng(seed).integers(0, 256, (count, 3, 2, 2), np.uint8)
    grid = (1, rows * merge, columns * merge)
    return ImageItem(patches, grid, rows * columns, sha256(patches.tobytes()).digest())


@pytest.mark.parametrize(("merge", "exact"), sweep([(3, False), (5, True)], [(3, False)]))
def test_other_merges_answer_with_the_best_tokens_too(merge: int, exact: bool) -> None:
    """No array of a power of two holds whole tokens of 3 x 3 or of 5 x 5 patches."""
    pixels = PixelConfig(in_patch_limit=20 * merge**2, patch_limit_on_one_side=16 * merge)
    vision = drawn(replace(VISION, merge_size=merge, pixels=pixels))
    target = seeing_target()
    engine = Engine(target, None, sizes(0, exact=exact), eos_token_ids=(), vision=vision)
    parts = [[5, 9], shown(1, merge, 2, 3), [1], shown(2, merge, 1, 7), shown(3, merge, 1, 1), [4]]
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    request = with_images("r", parts, greedy)
    answer = drive(engine, [request])["r"].token_ids
    features = encode_images(vision, [placed.item for placed in request.images])
    ids = np.array([request.prompt_ids + answer])
    best = forward(target, ids, image_features=features).logits[0].argmax(-1)
    assert answer == best[len(request.prompt_ids) - 1 : -1].tolist()
