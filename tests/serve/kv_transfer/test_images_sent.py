"""A prompt with an image runs on one engine, and another goes on with its pages: those of the same
image, and no others."""

from dataclasses import replace
from typing import Any

import jax
import pytest
from driving import sizes
from test_prefill_apart import ROOM, Ends, assert_as_alone, assert_nothing_lost, produced, went_on
from tiny import TARGET, latent_draft, tiny_draft, tiny_target
from tiny_vision import PAD, VISION, drawn, image, with_images

from eagle3_jax.engine import Engine, Request
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.vision.item import ImageItem
from serve.kv_transfer.config import KVRole, KVTransferConfig
from serve.kv_transfer.transfers import Transfers

STEM, TAIL = [5, 9, 2, 7, 11, 3, 8, 1, 6, 4], [1, 2, 30, 4, 5]
SEEN, OTHER = image(1, 8, 6), image(2, 8, 6)
"""12 tokens each: six whole pages of the prompt."""
DIVIDED: dict[str, Any] = {"decode_context_parallel_size": 2, "page_size": 2, "exact": True}


def made(role: KVRole, devices: int) -> Ends:
    """An engine with its end of transfers; two devices divide contexts."""
    target = tiny_target(config=replace(TARGET, media_placeholder_token_id=PAD))
    draft = tiny_draft(target) if devices == 1 else latent_draft(target)
    vision, fields = drawn(VISION), {} if devices == 1 else DIVIDED
    if devices > 1:
        mesh = make_mesh(devices, devices=jax.devices()[:devices])
        for model in (target, draft, vision):
            shard(model, mesh)
    config = sizes(3, kv_offloading_bytes=ROOM, **fields)
    engine = Engine(target, draft, config, eos_token_ids=(), vision=vision)
    return engine, Transfers(engine, KVTransferConfig(role, port=0))


def asked(shown: ImageItem, tokens: int = 16) -> Request:
    sampling = SamplingParams(temperature=0.7, seed=3, max_tokens=tokens)
    return with_images("r", [STEM, shown, TAIL], sampling)


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.long)])
def test_pages_of_an_image_are_found_for_the_same_image_alone(devices: int) -> None:
    producer, taker = made("producer", devices), made("consumer", devices)
    # The other image first: what it runs by itself must not be there already.
    missed = went_on(taker, produced(producer, asked(SEEN, 1)), asked(OTHER))
    assert missed.outputs[-1].cached_tokens == 0
    taker[0].reset_prefix_cache()
    found = went_on(taker, produced(producer, asked(SEEN, 1)), asked(SEEN))
    assert found.outputs[-1].cached_tokens == 24
    assert_as_alone(taker, missed, asked(OTHER), salt="other")
    assert_as_alone(taker, found, asked(SEEN))
    assert taker[1].puller and taker[1].puller.counts.failed == 0
    assert_nothing_lost(taker)
