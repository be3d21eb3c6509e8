"""A checkpoint in which every number of vision differs from the released one."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from image_goldens import CHECKPOINT
from PIL import Image
from safetensors.torch import save_file
from sweeps import sweep
from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25VisionConfig
from transformers.models.kimi_k25.modeling_kimi_k25 import (
    Kimi_K25MultimodalProjection,
    Kimi_K25VisionModel,
)

from convert import load_vision, read_image
from convert.models.vision import preprocessor_to_hf, vision_to_hf
from eagle3_jax import ImageItem, encode_images
from eagle3_jax.config import KimiConfig
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.vision.packing import buckets_up_to, largest_bucket, pack

TEXT = 40
VISION = {
    "vt_hidden_size": 72,
    "vt_num_hidden_layers": 2,
    "vt_num_attention_heads": 3,
    "vt_intermediate_size": 52,
    "init_pos_emb_height": 7,
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
"""Every number differs from the released one."""


def published(merge: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json, which names no placeholder, and preprocessor_config.json."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    del config["media_placeholder_token_id"]
    config["vision_config"] |= VISION | {"merge_kernel_size": [merge, merge]}
    config["text_config"] |= {"hidden_size": TEXT, "vocab_size": 163_840}
    kernel = [merge, merge] if merge % 2 else merge
    return config, {"media_proc_cfg": MEDIA | {"merge_kernel_size": kernel}}


@pytest.mark.parametrize("merge", [1, 2, 3, 5, 6, 10])
def test_arrays_hold_whole_tokens_and_the_largest_image(merge: int) -> None:
    config = VisionConfig.from_hf(*published(merge))
    sizes, unit = buckets_up_to(largest_bucket(config), config.token_patches), merge**2
    assert all(size % unit == 0 for size in sizes)
    assert sizes[-1] >= config.most_image_tokens * unit
    for rows in range(merge, config.most_side, merge):
        patches = np.zeros((rows * merge, 3, 6, 6), np.uint8)
        packed = pack([ImageItem(patches, (1, rows, merge), rows // merge)], config)
        assert packed.patches.shape[0] in sizes


Models = tuple[Kimi_K25VisionModel, Kimi_K25MultimodalProjection]
GRIDS = [(1, 3, 6), (3, 6, 3), (1, 9, 12)]
"""Frames, and patches in each direction, in units of merged tokens: images and a chunk."""


def made(merge: int) -> Models:
    """transformers' tower and projector, with random weights of which each counts."""
    torch.manual_seed(merge)
    tower = Kimi_K25VisionModel(
        Kimi_K25VisionConfig(
            patch_size=VISION["patch_size"],
            pos_emb_height=VISION["init_pos_emb_height"],
            pos_emb_width=VISION["init_pos_emb_width"],
            pos_emb_time=VISION["init_pos_emb_time"],
            num_attention_heads=VISION["vt_num_attention_heads"],
            num_hidden_layers=VISION["vt_num_hidden_layers"],
            hidden_size=VISION["vt_hidden_size"],
            intermediate_size=VISION["vt_intermediate_size"],
            merge_kernel_size=(merge, merge),
        )
    )
    joined = SimpleNamespace(
        vision_config=tower.config,
        text_config=SimpleNamespace(hidden_size=TEXT),
        projection_hidden_size=VISION["mm_hidden_size"],
        projection_layer_norm_eps=VISION["projector_ln_eps"],
    )
    projector = Kimi_K25MultimodalProjection(joined)
    for name, tensor in [*tower.named_parameters(), *projector.named_parameters()]:
        if "norm" in name and name.endswith("weight"):
            tensor.data.normal_(1.0, 0.3)
        elif tensor.dim() == 1 or "pos_emb" in name:
            tensor.data.normal_(0.0, 0.5)
        else:
            tensor.data.normal_(0.0, tensor[0].numel() ** -0.5)
    return tower.eval(), projector.eval()


RENAMED = {
    "patch_embed.pos_emb.position_embeddings": "patch_embed.pos_emb.weight",
    ".norm1.": ".norm0.",
    ".norm2.": ".norm1.",
    ".attn.proj.": ".wo.",
    ".mlp.fc1.": ".mlp.fc0.",
    ".mlp.fc2.": ".mlp.fc1.",
    "layers.": "encoder.blocks.",
    "final_layernorm": "encoder.final_layernorm",
}


def published_tensors(tower: Kimi_K25VisionModel, projector: Any) -> dict[str, torch.Tensor]:
    """Named and laid out as in the release: one matrix of queries, keys and values, in which the
    two numbers of a rotated pair lie together."""
    tensors, heads = {}, VISION["vt_num_attention_heads"]
    for name, tensor in tower.state_dict().items():
        if "q_proj" in name:
            parts = [tower.state_dict()[name.replace("q_proj", f"{p}_proj")] for p in "qkv"]
            pairs = [p.view(heads, 2, -1, *p.shape[1:]).transpose(1, 2) for p in parts[:2]]
            parts[:2] = [pair.reshape(part.shape) for pair, part in zip(pairs, parts, strict=False)]
            name, tensor = name.replace("attn.q_proj", "wqkv"), torch.cat(parts)
        elif "k_proj" in name or "v_proj" in name:
            continue
        for theirs, ours in RENAMED.items():
            name = name.replace(theirs, ours, 1)
        tensors[f"vision_tower.{name}"] = tensor.contiguous()
    for name, tensor in projector.state_dict().items():
        name = name.replace("in_proj", "proj.0").replace("out_proj", "proj.2")
        tensors[f"mm_projector.{name}"] = tensor
    return tensors


@pytest.mark.parametrize("merge", sweep([1, 3, 5, 6], [3]))
def test_features_are_those_of_transformers(merge: int, tmp_path: Path) -> None:
    """All items in one call, images and a chunk."""
    tower, projector = made(merge)
    config, preprocessor = published(merge)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    save_file(published_tensors(tower, projector), tmp_path / "model.safetensors")
    rng, items, expected = np.random.default_rng(merge), [], []
    mean, std = (np.reshape(MEDIA[f"image_{name}"], (3, 1, 1)) for name in ("mean", "std"))
    for frames, *sides in GRIDS:
        rows, columns = (side // 3 * merge for side in sides)
        grid = (frames, rows, columns)
        patches = rng.integers(0, 256, (int(np.prod(grid)), 3, 6, 6), np.uint8)
        items.append(ImageItem(patches, grid, rows * columns // merge**2))
        pixels = torch.from_numpy((patches / 255 - mean) / std).float()
        with torch.no_grad():
            expected.append(projector(tower(pixels, torch.tensor([grid])).pooler_output)[:, 0])
    found = encode_images(load_vision(tmp_path, dtype="float32"), items)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4)


def wide_picture(patches: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((6, patches * 6, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_positions_end_at_512_whatever_the_limit_says() -> None:
    config, preprocessor = published(3)
    preprocessor["media_proc_cfg"] |= {"patch_limit_on_one_side": 900, "in_patch_limit": 9000}
    wide = VisionConfig.from_hf(config, preprocessor)
    assert read_image(wide_picture(510), wide).grid_thw == (1, 3, 510)
    for patches in (511, 600):
        with pytest.raises(ValueError, match="512 patches on one side"):
            read_image(wide_picture(patches), wide)
    item = ImageItem(np.zeros((3 * 513, 3, 6, 6), np.uint8), (1, 3, 513), 171)
    with pytest.raises(ValueError, match="512 patches on a side, got 3 x 513"):
        pack([item], wide)


def test_whatever_a_checkpoint_says_is_said_again_where_it_is_written() -> None:
    config = VisionConfig.from_hf(*published(3))
    written = json.loads(json.dumps(preprocessor_to_hf(config)))
    fields = written["media_proc_cfg"]
    assert {name: fields[name] for name in MEDIA} == MEDIA
    assert VisionConfig.from_hf(published(3)[0] | vision_to_hf(config), written) == config


def test_the_placeholder_is_the_released_one_unless_the_vocabulary_lacks_it() -> None:
    config, _ = published(2)
    assert VisionConfig.from_hf(config).media_placeholder_token_id == 163_605
    assert KimiConfig.from_hf(config).media_placeholder_token_id == 163_605
    config["text_config"]["vocab_size"] = 1000
    assert KimiConfig.from_hf(config).media_placeholder_token_id is None
