"""The tables against names and shapes of the released checkpoints, without their weights."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from flax import nnx
from oracle_files import ORACLES

from convert.eagle3 import canonical_draft_name, draft_rules
from convert.fill import named_variables
from convert.kimi_k25 import canonical_target_name, published_target_name, target_rules
from convert.quantized import refuse_quantized
from convert.rules import Plan, Rule, make_plan
from convert.safetensors_files import Checkpoint, TensorInfo
from eagle3_jax.config import DraftConfig, TargetConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget

PUBLISHED = ORACLES / "published"
LAST_LAYER = 1
"""One dense and one expert layer; the other 59 repeat the second."""


def read(name: str) -> Any:
    return json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))


def listed(name: str) -> Checkpoint:
    tensors = {}
    for entry in read(f"{name}.manifest")["tensors"]:
        ranges = dict(entry["index_ranges"])
        if "L" in ranges:
            ranges["L"][1] = min(ranges["L"][1], LAST_LAYER)
        spans = [range(first, last + 1) for first, last in ranges.values()]
        for values in itertools.product(*spans):
            full = entry["name"].format(**dict(zip(ranges, values, strict=True)))
            shape = tuple(entry["shape"])
            tensors[full] = TensorInfo(full, entry["dtype"], shape, Path(name), 0)
    return Checkpoint(Path(name), tensors, {})


def unpacked(checkpoint: Checkpoint) -> Checkpoint:
    """The same listing as it would be without INT4: eight values a word along the last axis."""
    tensors = {}
    for name, info in checkpoint.tensors.items():
        if name.endswith("weight_packed"):
            rows, words = info.shape
            name = name.removesuffix("_packed")
            tensors[name] = TensorInfo(name, "BF16", (rows, words * 8), info.file, 0)
        elif not name.endswith(("weight_scale", "weight_shape")):
            tensors[name] = info
    return Checkpoint(checkpoint.directory, tensors, {})


def plan(checkpoint: Checkpoint, model: nnx.Module, rules: list[Rule], canonical: Any) -> Plan:
    shapes = {path: v.get_value().shape for path, v in named_variables(model).items()}
    result = make_plan(checkpoint, rules, shapes, canonical=canonical)
    assert set(result.sources) == set(shapes)
    return result


def test_every_tensor_of_kimi_k25_has_its_place() -> None:
    published = read("kimi-k2.5.config")
    published["text_config"]["num_hidden_layers"] = LAST_LAYER + 1
    config = TargetConfig.from_hf(published)
    model = nnx.eval_shape(lambda: KimiTarget(config, rngs=nnx.Rngs(0), dtype="bfloat16"))
    checkpoint = unpacked(listed("kimi-k2.5"))
    result = plan(checkpoint, model, target_rules(config), canonical_target_name)
    assert all(name.startswith(("vision_tower.", "mm_projector.")) for name in result.dropped)
    assert len(result.sources["layers.1.mlp.experts.gate_proj"]) == 384
    for name in set(checkpoint.tensors) - set(result.dropped):
        assert published_target_name(canonical_target_name(name)) == name


def test_every_tensor_of_its_draft_has_its_place() -> None:
    published = read("kimi-k2.5-eagle3.config")
    config = DraftConfig.from_hf(published, num_target_layers=61)
    assert config.aux_layer_ids == (2, 30, 58)
    model = nnx.eval_shape(lambda: Eagle3Draft(config, rngs=nnx.Rngs(0), dtype="bfloat16"))
    draft = listed("kimi-k2.5-eagle3")
    assert not plan(draft, model, draft_rules(config), canonical_draft_name).dropped


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kimi-k2.5", r"INT4 of compressed-tensors .*weight_packed \(I32\)"),
        ("kimi-k2.5-eagle3-fp8", r"FP8 per channel of Quark .*weight \(F8_E4M3\)"),
    ],
)
def test_quantised_releases_are_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refuse_quantized(listed(name))
