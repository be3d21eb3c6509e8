"""A vision tower that two devices divide, from a published and from a converted checkpoint."""

from pathlib import Path

import jax
import numpy as np
import pytest
from image_goldens import CHECKPOINT, ITEMS, golden_vision, read_item

from convert import load_vision
from convert.conversion.cli import main as convert_command
from eagle3_jax import VisionModel, encode_images
from eagle3_jax.mesh import make_mesh

GOLDENS = golden_vision()
NAMES = [name for name in ITEMS if f"{name}.projected" in GOLDENS]


def divided(path: Path) -> VisionModel:
    mesh = make_mesh(2, devices=jax.devices()[:2])
    return load_vision(path, dtype="float32", mesh=mesh, split=True)


@pytest.fixture(scope="module")
def published() -> VisionModel:
    return divided(CHECKPOINT)


def test_its_features_are_transformers(published: VisionModel) -> None:
    items = [read_item(name, published.config) for name in NAMES]
    for name, rows in zip(NAMES, encode_images(published, items), strict=True):
        np.testing.assert_allclose(rows, GOLDENS[f"{name}.projected"], atol=1e-4)


def test_a_converted_one_has_the_same_parts_on_each_device(
    published: VisionModel, tmp_path: Path
) -> None:
    assert convert_command([str(CHECKPOINT), str(tmp_path / "store")]) == 0
    expected, found = (
        model.vision_tower.encoder.blocks[0].wqkv.kernel.get_value().addressable_shards
        for model in (published, divided(tmp_path / "store"))
    )
    for ours, theirs in zip(expected, found, strict=True):
        np.testing.assert_array_equal(ours.data, theirs.data)
