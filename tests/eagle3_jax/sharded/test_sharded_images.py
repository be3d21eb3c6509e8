"""Images over several devices: each encodes some of them, and answers are those of one device."""

from dataclasses import replace
from typing import Any

import jax
from driving import drive, sizes
from tiny import TARGET, tiny_draft, tiny_target
from tiny_vision import PAD, VISION, drawn, image, with_images

from eagle3_jax.engine import Engine, Request
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.sampling.params import SamplingParams


def requests() -> list[Request]:
    """Images of two sizes, two of them in a chunk."""
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    return [
        with_images("two", [image(1), [3], image(2, 2, 2), [5, 7]], sampling),
        with_images("large", [[9, 4], image(3, 8, 6), [6]], sampling),
    ]


def engine(devices: int, **changes: Any) -> Engine:
    target = tiny_target(config=replace(TARGET, media_placeholder_token_id=PAD))
    draft, vision = tiny_draft(target), drawn(VISION)
    if devices > 1:
        mesh = make_mesh(devices, devices=jax.devices()[:devices])
        for model in (target, draft, vision):
            shard(model, mesh)
    return Engine(target, draft, sizes(3, **changes), eos_token_ids=(), vision=vision)


def test_two_devices_divide_images_and_answer_as_one() -> None:
    one, two = engine(1), engine(2)
    expected = drive(one, requests())
    found = drive(two, requests())
    for name, answer in expected.items():
        assert found[name].token_ids == answer.token_ids
    assert two.stats().images_encoded == 3


def test_devices_that_divide_contexts_answer_the_same() -> None:
    expected = drive(engine(1), requests())
    parts: dict[str, Any] = {"page_size": 2, "num_pages": 28, "decode_context_parallel_size": 2}
    found = drive(engine(2, **parts), requests())
    for name, answer in expected.items():
        assert found[name].token_ids == answer.token_ids
