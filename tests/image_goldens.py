"""The golden images, third parties' results for them, and this project's results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from oracle_files import ORACLES
from safetensors.numpy import load_file

from convert import read_frames, read_image
from eagle3_jax import ImageItem
from eagle3_jax.config.vision import VisionConfig

VISION = ORACLES / "vision"
CHECKPOINT = VISION / "kimi_vision_bf16"
FACTS: dict[str, Any] = json.loads((VISION / "goldens" / "vision.json").read_text())
ITEMS: dict[str, Any] = FACTS["items"]


def golden_vision() -> dict[str, np.ndarray]:
    """Return all golden arrays."""
    return load_file(VISION / "goldens" / "vision_f32.safetensors")


def config_of(directory: Path = CHECKPOINT) -> VisionConfig:
    """Read a checkpoint's config from its two files."""
    file = directory / "preprocessor_config.json"
    preprocessor = json.loads(file.read_text()) if file.is_file() else None
    return VisionConfig.from_hf(json.loads((directory / "config.json").read_text()), preprocessor)


def read_item(name: str, config: VisionConfig) -> ImageItem:
    """Read an item of the goldens; `@plain` and video chunks use the options of Moonshot's code."""
    file, _, plain = name.partition("@")
    how: dict[str, Any] = {"exif": False, "background": None} if plain else {}
    if (count := FACTS["video_chunks"].get(name)) is not None:
        frames = [VISION / "images" / f"{name}_f{i}.png" for i in range(count)]
        return read_frames([f.read_bytes() for f in frames], config, exif=False, background=None)
    return read_image((VISION / "images" / f"{file}.png").read_bytes(), config, **how)
