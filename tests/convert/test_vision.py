"""MoonViT, projector and image prompts against transformers, from every form of a checkpoint."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from edited import copy_edited
from image_goldens import CHECKPOINT, FACTS, ITEMS, config_of, golden_vision, read_item
from oracle_files import ORACLES
from sweeps import sweep

from convert import load_target, load_vision
from convert.conversion.cli import main as convert_command
from eagle3_jax import ImageItem, Target, VisionModel, encode_images, forward
from eagle3_jax.config.vision import PixelConfig
from eagle3_jax.layers.patch_positions import rotation_angles
from eagle3_jax.mesh import make_mesh
from eagle3_jax.vision.packing import pack

GOLDENS = golden_vision()
NAMES = [name for name in ITEMS if f"{name}.projected" in GOLDENS]
FORMS = ("kimi_bf16", "kimi_int4_ct", "kimi_mxfp4_quark", "kimi_w4a8_quark")


@pytest.fixture(scope="module")
def vision() -> VisionModel:
    return load_vision(CHECKPOINT, dtype="float32")


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target(CHECKPOINT, dtype="float32")


@pytest.fixture(scope="module")
def items(vision: VisionModel) -> dict[str, ImageItem]:
    return {name: read_item(name, vision.config) for name in NAMES}


@pytest.fixture(scope="module")
def features(vision: VisionModel, items: dict[str, ImageItem]) -> dict[str, np.ndarray]:
    found = encode_images(vision, list(items.values()))
    return {name: np.asarray(rows) for name, rows in zip(items, found, strict=True)}


def test_features_of_all_items_in_one_call_are_transformers(
    features: dict[str, np.ndarray],
) -> None:
    for name in NAMES:
        np.testing.assert_allclose(features[name], GOLDENS[f"{name}.projected"], atol=1e-4)


def test_a_tower_that_two_devices_divide_has_the_same_features(
    items: dict[str, ImageItem],
) -> None:
    mesh = make_mesh(2, devices=jax.devices()[:2])
    split = load_vision(CHECKPOINT, dtype="float32", mesh=mesh, split=True)
    for name, rows in zip(items, encode_images(split, list(items.values())), strict=True):
        np.testing.assert_allclose(rows, GOLDENS[f"{name}.projected"], atol=1e-4)


@pytest.mark.parametrize("name", sweep(["tiny", "chunk3", "chunk1"], ["chunk3"]))
def test_states_before_and_after_every_block_are_transformers(
    name: str, vision: VisionModel, items: dict[str, ImageItem]
) -> None:
    packed = pack([items[name]], vision.config)
    places = packed.places
    order = np.ravel_multi_index(
        tuple(np.asarray(p) for p in packed.places[1:4]), items[name].grid_thw, mode="clip"
    )[: len(items[name].patches)]

    def check(states: jax.Array, golden: str) -> None:
        expected = GOLDENS[f"{name}.{golden}"][order]
        np.testing.assert_allclose(states[: len(order)], expected, atol=1e-4)

    tower = vision.vision_tower
    x = tower.patch_embed(packed.patches, places)
    check(x, "embed")
    angles = rotation_angles(places, tower.head_dim)
    for number, block in enumerate(tower.encoder.blocks):
        x = block(x, angles, places.item)
        check(x, f"layer.{number}")
    check(tower(packed.patches, places), "final")


@pytest.mark.parametrize("prompt", FACTS["prompts"])
def test_image_prompts_give_transformers_embeddings_states_and_logits(
    prompt: str, target: Target, features: dict[str, np.ndarray]
) -> None:
    facts = FACTS["prompts"][prompt]
    ids = np.array([facts["expanded_ids"]])
    shown = [features[name] for name in facts["media"]]
    found = forward(target, ids, aux_layer_ids=(0, 1), image_features=shown)
    embeds, states = np.split(np.asarray(found.aux_hidden[0]), 2, -1)
    np.testing.assert_allclose(embeds, GOLDENS[f"p.{prompt}.inputs_embeds"], atol=1e-4)
    if (inputs := GOLDENS.get(f"p.{prompt}.hidden.1")) is not None:
        np.testing.assert_allclose(states, inputs, atol=1e-4)
    logits, expected = found.logits[0], GOLDENS[f"p.{prompt}.logits"]
    np.testing.assert_allclose(logits[-len(expected) :], expected, atol=1e-4)
    np.testing.assert_array_equal(logits.argmax(-1), GOLDENS[f"p.{prompt}.argmax"])


def test_bfloat16_stays_within_two_percent(items: dict[str, ImageItem]) -> None:
    rounded = load_vision(CHECKPOINT, dtype="bfloat16")
    for name, rows in zip(items, encode_images(rounded, list(items.values())), strict=True):
        expected = GOLDENS[f"{name}.projected"]
        error = np.asarray(rows, np.float32) - expected
        assert np.sqrt(np.mean(error**2) / np.mean(expected**2)) <= 0.02, name


def test_features_must_be_as_many_as_placeholders(target: Target) -> None:
    with pytest.raises(ValueError, match=r"1 positions hold the placeholder 341.* 2 features"):
        forward(target, np.array([[1, 341]]), image_features=[np.zeros((2, 64), np.float32)])


@pytest.mark.parametrize("form", sweep(FORMS, ["kimi_int4_ct", "kimi_mxfp4_quark"]))
def test_every_form_and_what_it_converts_to_has_the_same_tower(form: str, tmp_path: Path) -> None:
    published = load_vision(ORACLES / form, dtype="float32")
    item = read_item("exact", published.config)
    (expected,) = encode_images(published, [item])
    if form == "kimi_int4_ct":
        assert convert_command([str(ORACLES / form), str(tmp_path / "store")]) == 0
        published = load_vision(tmp_path / "store", dtype="float32")
        load_target(tmp_path / "store")
    else:
        published = load_vision(ORACLES / form, dtype="float32", mesh=make_mesh(2))
    (found,) = encode_images(published, [item])
    np.testing.assert_array_equal(found, expected)


def test_both_families_of_names_are_read(tmp_path: Path) -> None:
    expected = replace(config_of(), pixels=PixelConfig())

    def shorter(config: dict) -> dict:
        fields = config["vision_config"]
        names = {k: k.removeprefix("vt_").replace("init_pos", "pos") for k in fields}
        return config | {"vision_config": {names[k]: v for k, v in fields.items()}}

    assert config_of(copy_edited(CHECKPOINT, tmp_path / "short", config=shorter)) == expected


def test_a_checkpoint_without_vision_is_refused() -> None:
    with pytest.raises(ValueError, match="no vision_config"):
        load_vision(ORACLES / "minimax_bf16")
