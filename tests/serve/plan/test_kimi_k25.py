"""The widths that are written down against the published config.json files."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from flax import nnx
from oracle_files import ORACLES

from eagle3_jax.config import DraftConfig, KimiConfig
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.programs.compiled import flatten_model
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_tools.plan.data.kimi_k25 import (
    DRAFT,
    TARGET,
    VISION,
    WeightScheme,
    abstract_draft,
    abstract_target,
)


def published(name: str) -> dict[str, Any]:
    return json.loads(Path(ORACLES / "published" / f"{name}.config.json").read_text())


def test_the_target_is_the_published_one():
    assert KimiConfig.from_hf(published("kimi-k2.5")) == TARGET


def test_the_vision_tower_is_the_published_one():
    assert VisionConfig.from_hf(published("kimi-k2.5")) == VISION


def test_the_draft_is_the_published_one():
    found = DraftConfig.from_hf(published("kimi-k2.5-eagle3-fp8"), num_target_layers=61)
    assert replace(found, aux_layer_ids=DRAFT.aux_layer_ids) == DRAFT


def formats(model: Any) -> Counter[str]:
    kept = (
        module.format.weights
        for _, module in nnx.iter_modules(model)
        if isinstance(module, QuantizedKernel)
    )
    return Counter(kept)


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ("mxfp4", {"mxfp4": 3 + 2 * 6}),
        ("int4", {"int4_group": 2 * 3}),
        ("ptpc", {"fp8_channel": 27}),
    ],
)
def test_layers_are_kept_in_the_scheme_s_formats(scheme: WeightScheme, wanted: dict[str, int]):
    """A dense layer and two with experts; PTPC has four attention matrices in each besides."""
    assert formats(abstract_target(3, scheme)) == wanted


def test_a_layer_of_mxfp4_has_the_bytes_that_are_published():
    """69,120 + 180 + 3 tensors of 4.25 bits a value; the rest of a layer is bfloat16."""
    two, three = (abstract_target(layers, "mxfp4") for layers in (2, 3))
    sizes = []
    for model in (two, three):
        leaves, _ = flatten_model(model)
        sizes.append(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
    experts = 385 * 3 * 7168 * 2048
    attention = 7168 * (1536 + 576) + 1536 * 12288 + 512 * 64 * 256 + 8192 * 7168
    norms = 2 * 7168 + 1536 + 512
    router = 384 * (7168 * 2 + 4)
    assert sizes[1] - sizes[0] == experts * 17 // 32 + 2 * (attention + norms) + router


def test_the_draft_keeps_fc_head_and_embedding_as_they_are():
    assert formats(abstract_draft((1, 2, 3))) == {"fp8_channel": 7}
    assert set(get_args(WeightScheme)) == {"mxfp4", "ptpc", "int4"}
