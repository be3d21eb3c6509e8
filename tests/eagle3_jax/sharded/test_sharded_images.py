"""Images over several devices: each encodes some of them, or a part of each, and answers are those
of one device."""

from dataclasses import replace
from typing import Any

import jax
import pytest
from driving import drive, sizes
from tiny import TARGET, tiny_draft, tiny_target
from tiny_vision import PAD, VISION, drawn, image, with_images

from eagle3_jax.engine import Engine, Request
from eagle3_jax.mesh import check_units, make_mesh, shard
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.sampling.params import SamplingParams


def requests() -> list[Request]:
    """Images of two sizes, two of them in a chunk."""
    sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    return [
        with_images("two", [image(1), [3], image(2, 2, 2), [5, 7]], sampling),
        with_images("large", [[9, 4], image(3, 8, 6), [6]], sampling),
    ]


def engine(devices: int, replicas: int = 1, **changes: Any) -> Engine:
    target = tiny_target(config=replace(TARGET, media_placeholder_token_id=PAD))
    split = changes.get("mm_encoder_tp_mode") == "weights"
    draft, vision = tiny_draft(target), drawn(VISION, split=split)
    if devices * replicas > 1:
        taken = jax.devices()[: devices * replicas]
        of_replicas = {"data_parallel_size": replicas, "enable_expert_parallel": replicas > 1}
        mesh = make_mesh(devices, devices=taken, **of_replicas)
        for model in (target, draft, vision):
            shard(model, mesh)
    config = sizes(3, data_parallel_size=replicas, **changes)
    return Engine(target, draft, config, eos_token_ids=(), vision=vision)


SHARED: dict[str, Any] = {"page_size": 2, "num_pages": 28, "decode_context_parallel_size": 2}
WAYS = [(2, 1, {}), (2, 1, {"mm_encoder_tp_mode": "weights"}), (2, 1, SHARED)]
WAYS += [(1, 2, {}), (2, 2, {})]


@pytest.mark.long
@pytest.mark.parametrize(("devices", "replicas", "changes"), WAYS)
def test_devices_encode_each_image_once_and_answer_as_one(
    devices: int, replicas: int, changes: dict[str, Any]
) -> None:
    expected, several = drive(engine(1), requests()), engine(devices, replicas, **changes)
    found = drive(several, requests())
    for name, answer in expected.items():
        assert found[name].token_ids == answer.token_ids
    assert several.stats().images_encoded == 3


def divided_tower() -> VisionModel:
    """On two devices, each with one of its two heads."""
    vision, mesh = drawn(VISION, split=True), make_mesh(2, devices=jax.devices()[:2])
    check_units(vision.units, mesh)
    shard(vision, mesh)
    return vision


def test_devices_that_divide_the_tower_hold_half_of_every_matrix_between_norms() -> None:
    vision = divided_tower()
    block, projector = vision.vision_tower.encoder.blocks[0], vision.mm_projector.proj
    wide: list[Any] = [block.mlp.fc0, block.mlp.fc1, projector[0], projector[2]]
    for layer in (block.wqkv, block.wo, *wide):
        whole: Any = layer.kernel.get_value()
        assert [2 * part.data.size for part in whole.addressable_shards] == [whole.size] * 2


def test_a_tower_made_for_the_other_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mm_encoder_tp_mode is weights, .* split=True"):
        target = tiny_target(config=replace(TARGET, media_placeholder_token_id=PAD))
        sized = sizes(3, mm_encoder_tp_mode="weights")
        Engine(target, tiny_draft(target), sized, eos_token_ids=(), vision=drawn(VISION))
