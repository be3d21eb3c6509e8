"""Tokens of 3 x 3 and of 5 x 5 patches: no array of a power of two holds whole ones."""

from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from driving import drive, sizes
from tiny_vision import VISION, drawn, seeing_target, with_images

from eagle3_jax import ImageItem, encode_images, forward
from eagle3_jax.config.vision import PixelConfig
from eagle3_jax.engine import Engine
from eagle3_jax.sampling.params import SamplingParams


def shown(seed: int, merge: int, rows: int, columns: int) -> ImageItem:
    """An image of rows x columns tokens."""
    count = rows * columns * merge**2
    patches = np.random.default_rng(seed).integers(0, 256, (count, 3, 2, 2), np.uint8)
    grid = (1, rows * merge, columns * merge)
    return ImageItem(patches, grid, rows * columns, sha256(patches.tobytes()).digest())


@pytest.mark.parametrize(("merge", "exact"), [(3, False), (5, True)])
def test_answers_are_the_best_tokens_of_a_whole_pass(merge: int, exact: bool) -> None:
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
