"""A checkpoint in which every number of vision differs from the released: against NumPy."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_goldens import CHECKPOINT, config_of
from numpy_vision import Numbers, features_of, patches_of
from PIL import Image
from safetensors.numpy import save_file
from sweeps import sweep

from convert import load_vision, read_frames, read_image
from convert.models.vision import preprocessor_to_hf, vision_to_hf
from eagle3_jax import ImageItem, encode_images
from eagle3_jax.config import KimiConfig
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.vision.packing import bucket_of, buckets_up_to, largest_bucket, pack

TEXT = 40
VISION = {
    "vt_hidden_size": 72,
    "vt_num_hidden_layers": 2,
    "vt_num_attention_heads": 3,
    "vt_intermediate_size": 52,
    "init_pos_emb_height": 5,
    "init_pos_emb_width": 7,
    "init_pos_emb_time": 3,
    "patch_size": 6,
    "text_hidden_size": TEXT,
    "mm_hidden_size": 72,
    "projector_ln_eps": 0.02,
}
MEDIA = {
    "in_patch_limit": 150,
    "in_patch_limit_each_frame": 70,
    "in_patch_limit_video": 131,
    "patch_limit_on_one_side": 30,
    "patch_size": 6,
    "sample_fps": 1.5,
    "max_num_frames_each_video": 77,
    "temporal_merge_kernel_size": 3,
    "timestamp_mode": "mm:ss",
    "image_mean": [0.48, 0.33, 0.61],
    "image_std": [0.27, 0.4, 0.19],
}
MERGES = (1, 3, 5, 6)
SIZES = ((5, 3), (36, 36), (61, 95), (100, 310), (20, 170), (9, 400))
"""Height and width of pictures: smaller than a patch, of no border, shrunk by either limit."""
CHUNKS = ((2, 40, 66), (3, 70, 50), (1, 50, 90))
"""Frames, height and width."""


def published(merge: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json, which names no placeholder, and preprocessor_config.json."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    del config["media_placeholder_token_id"]
    config["vision_config"] |= VISION | {"merge_kernel_size": [merge, merge]}
    config["text_config"] |= {"hidden_size": TEXT, "vocab_size": 163_840}
    kernel = [merge, merge] if merge % 2 else merge
    return config, {"media_proc_cfg": MEDIA | {"merge_kernel_size": kernel}}


def drawn_weights(merge: int) -> dict[str, np.ndarray]:
    """Of every published tensor, so large that each counts."""
    hidden, wide = VISION["vt_hidden_size"], VISION["vt_intermediate_size"]
    height, width = VISION["init_pos_emb_height"], VISION["init_pos_emb_width"]
    joined, patch = merge * merge * hidden, VISION["patch_size"]
    linears = {"mm_projector.proj.0": (joined, joined), "mm_projector.proj.2": (TEXT, joined)}
    norms = ["mm_projector.pre_norm", "vision_tower.encoder.final_layernorm"]
    for layer in range(VISION["vt_num_hidden_layers"]):
        block = f"vision_tower.encoder.blocks.{layer}."
        linears |= {f"{block}wqkv": (3 * hidden, hidden), f"{block}wo": (hidden, hidden)}
        linears |= {f"{block}mlp.fc0": (wide, hidden), f"{block}mlp.fc1": (hidden, wide)}
        norms += [f"{block}norm0", f"{block}norm1"]
    shapes = {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    shapes |= {f"{name}.{part}": (hidden,) for name in norms for part in ("weight", "bias")}
    embedding = "vision_tower.patch_embed."
    shapes |= {
        f"{embedding}proj.weight": (hidden, 3, patch, patch),
        f"{embedding}proj.bias": (hidden,),
        f"{embedding}pos_emb.weight": (height, width, hidden),
    }
    rng = np.random.default_rng(merge)
    found = {n: rng.normal(size=s).astype(np.float32) / 2 for n, s in shapes.items()}
    for name, shape in linears.items():
        found[f"{name}.weight"] *= np.float32(2 * shape[1] ** -0.5)
    for name in norms:
        found[f"{name}.weight"] += 1
    return found


def write(directory: Path, merge: int) -> dict[str, np.ndarray]:
    """A checkpoint's vision; its tensors."""
    config, preprocessor = published(merge)
    weights = drawn_weights(merge)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    save_file(weights, directory / "model.safetensors")
    return weights


def picture(seed: int, height: int, width: int) -> np.ndarray:
    """Random colours with edges that resampling overshoots at."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3))
    return np.repeat(np.repeat(coarse, 4, 0), 4, 1)[:height, :width].astype(np.uint8)


def as_file(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def read_all(config: VisionConfig) -> list[tuple[ImageItem, list[np.ndarray], bool]]:
    """Every item with the pictures that it is of, and whether it is of a video."""
    found: list[tuple[ImageItem, list[np.ndarray], bool]] = []
    for seed, size in enumerate(SIZES):
        pixels = picture(seed, *size)
        found.append((read_image(as_file(pixels), config), [pixels], False))
    for count, *size in CHUNKS:
        frames = [picture(9 * count + i, *size) for i in range(count)]
        found.append((read_frames([*map(as_file, frames)], config), frames, True))
    return found


@pytest.mark.parametrize("merge", sweep(MERGES, [3]))
def test_pixels_and_features_are_those_of_the_description(merge: int, tmp_path: Path) -> None:
    """All items in one array, images and chunks."""
    weights = write(tmp_path / "seeing", merge)
    vision = load_vision(tmp_path / "seeing", dtype="float32")
    numbers = Numbers.of(*_fields(merge))
    items = read_all(vision.config)
    features = encode_images(vision, [item for item, *_ in items])
    for (item, frames, video), found in zip(items, features, strict=True):
        patches = patches_of(frames, numbers, video=video)
        assert item.grid_thw == patches.shape[:3]
        np.testing.assert_array_equal(item.patches, patches.reshape(item.patches.shape))
        expected = features_of(patches, numbers, weights)
        assert item.num_tokens == len(expected) == len(found)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def _fields(merge: int) -> tuple[dict[str, Any], dict[str, Any]]:
    config, preprocessor = published(merge)
    return config["vision_config"], preprocessor["media_proc_cfg"]


@pytest.mark.parametrize("merge", [*MERGES, 2, 10])
def test_arrays_hold_whole_tokens_and_the_largest_image(merge: int, tmp_path: Path) -> None:
    config = VisionConfig.from_hf(*published(merge))
    sizes, unit = buckets_up_to(largest_bucket(config), config.token_patches), merge**2
    assert all(size % unit == 0 for size in sizes)
    assert sizes[-1] >= config.most_image_tokens * unit
    for rows in range(merge, config.most_side, merge):
        patches = np.zeros((rows * merge, 3, 6, 6), np.uint8)
        packed = pack([ImageItem(patches, (1, rows, merge), rows // merge)], config)
        assert packed.patches.shape[0] in sizes


def test_positions_end_at_512_whatever_the_limit_says(tmp_path: Path) -> None:
    config, preprocessor = published(3)
    preprocessor["media_proc_cfg"] |= {"patch_limit_on_one_side": 900, "in_patch_limit": 9000}
    wide = VisionConfig.from_hf(config, preprocessor)
    assert read_image(as_file(picture(0, 6, 510 * 6)), wide).grid_thw == (1, 3, 510)
    for patches in (511, 600):
        with pytest.raises(ValueError, match="512 patches on one side"):
            read_image(as_file(picture(0, 6, patches * 6)), wide)
    item = ImageItem(np.zeros((3 * 513, 3, 6, 6), np.uint8), (1, 3, 513), 171)
    with pytest.raises(ValueError, match="512 patches on a side, got 3 x 513"):
        pack([item], wide)


def test_whatever_a_checkpoint_says_is_said_again_where_it_is_written() -> None:
    config = VisionConfig.from_hf(*published(3))
    written = json.loads(json.dumps(preprocessor_to_hf(config)))
    fields = written["media_proc_cfg"]
    assert {name: fields[name] for name in MEDIA} == MEDIA
    assert VisionConfig.from_hf(published(3)[0] | vision_to_hf(config), written) == config


def test_a_config_that_names_no_placeholder_has_the_released_one() -> None:
    assert VisionConfig.from_hf(published(3)[0]).media_placeholder_token_id == 163_605
    assert config_of().media_placeholder_token_id == 341


@pytest.mark.parametrize("token_patches", [1, 4, 9, 25, 36])
def test_what_fills_an_array_asks_for_no_larger_one(token_patches: int) -> None:
    for size in buckets_up_to(40_000, token_patches):
        assert size % token_patches == 0 and bucket_of(size, token_patches) == size


def test_a_vocabulary_without_the_placeholder_takes_no_images() -> None:
    config, _ = published(2)
    assert KimiConfig.from_hf(config).media_placeholder_token_id == 163_605
    config["text_config"]["vocab_size"] = 1000
    assert KimiConfig.from_hf(config).media_placeholder_token_id is None
