"""Quantised checkpoints that cannot be what they say end in one clear error each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edited import Tensors, copy_edited
from flax import nnx
from oracle_files import ORACLES

from convert import load_draft, load_target
from eagle3_jax.models.target import Target

EXPERT = "language_model.model.layers.1.mlp.experts.2.up_proj"
SHARED = "language_model.model.layers.1.mlp.shared_experts.up_proj"
LINEAR = "midlayer.self_attn.q_proj"
Change = Callable[[Tensors], Tensors]


def edited_array(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda tensors: {**tensors, name: edit(tensors[name])}


def with_first(value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def edit(array: np.ndarray) -> np.ndarray:
        flat = array.reshape(-1).copy()
        flat[0] = value
        return flat.reshape(array.shape)

    return edit


def without(name: str) -> Change:
    return lambda tensors: {key: array for key, array in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("source", "change", "message"),
    [
        (
            "kimi_int4_ct",
            without(f"{EXPERT}.weight_scale"),
            r"up_proj.weight_scale: missing; INT4 of compressed-tensors",
        ),
        (
            "kimi_int4_ct",
            edited_array(f"{EXPERT}.weight_scale", lambda a: a[:, :-1]),
            r"weight_scale: expected shape \(64, 4\), got \(64, 3\)",
        ),
        (
            "kimi_int4_ct",
            edited_array(f"{EXPERT}.weight_scale", with_first(np.nan)),
            r"experts.2.up_proj.weight: the scales hold infinities or NaN",
        ),
        (
            "kimi_int4_ct",
            edited_array(f"{EXPERT}.weight_shape", with_first(128)),
            r"weight_shape says \[128, 128\], weight_packed holds \[64, 128\]",
        ),
        (
            "kimi_int4_ct",
            edited_array(f"{EXPERT}.weight_packed", lambda a: a[:, :-1]),
            r"weight_scale: expected shape \(64, 3\), got \(64, 4\)",
        ),
        (
            "kimi_mxfp4_quark",
            edited_array(f"{EXPERT}.weight_scale", with_first(255)),
            r"up_proj.weight: the scales hold NaN \(e8m0 byte 255\)",
        ),
        (
            "kimi_mxfp4_quark",
            edited_array(f"{EXPERT}.weight_scale", lambda a: a.T),
            r"weight_scale: expected shape \(64, 4\), got \(4, 64\)",
        ),
        (
            "kimi_w4a8_quark",
            edited_array(f"{EXPERT}.weight_scale_2", lambda a: a[None]),
            r"weight_scale_2: expected shape \(64,\) or \(64, 1\), got \(1, 64\)",
        ),
        (
            "kimi_w4a8_quark",
            without(f"{EXPERT}.weight_scale"),
            "up_proj.weight_scale: missing; progressive INT4",
        ),
    ],
)
def test_targets_whose_scales_do_not_fit(
    source: str, change: Change, message: str, tmp_path: Path
) -> None:
    edited = copy_edited(ORACLES / source, tmp_path / "edited", tensors=change)
    with pytest.raises(ValueError, match=message) as raised:
        load_target(edited)
    assert str(edited) in str(raised.value)


def test_experts_of_one_stack_share_one_form(tmp_path: Path) -> None:
    def unpack(tensors: Tensors) -> Tensors:
        kept = {k: v for k, v in tensors.items() if not k.startswith(f"{EXPERT}.")}
        return {**kept, f"{EXPERT}.weight": np.zeros((64, 128), jnp.bfloat16)}

    edited = copy_edited(ORACLES / "kimi_int4_ct", tmp_path / "edited", tensors=unpack)
    with pytest.raises(ValueError, match=r"layers.1.mlp.experts.up_proj: its rows differ in form"):
        load_target(edited)


@pytest.mark.parametrize(
    ("source", "change", "message"),
    [
        (
            "draft_mha_fp8_ptpc",
            edited_array(f"{LINEAR}.weight_scale", with_first(np.inf)),
            "q_proj.weight: the scales hold infinities or NaN",
        ),
        (
            "draft_mha_fp8_ptpc",
            edited_array(f"{LINEAR}.weight", with_first(np.nan)),
            "q_proj.weight: the weights hold NaN",
        ),
        (
            "draft_mha_fp8_ptpc",
            edited_array(f"{LINEAR}.weight_scale", lambda a: a[:-1]),
            r"weight_scale: expected shape \(128,\) or \(128, 1\), got \(127,\)",
        ),
        (
            "draft_mha_int4_pc_awq",
            edited_array(f"{LINEAR}.weight_zero_point", with_first(1)),
            "q_proj.weight: only symmetric INT4 is supported",
        ),
        (
            "draft_mha_fp8_ptpc",
            lambda tensors: {**tensors, "fc.weight_scale": np.ones(128, np.float32)},
            r"fc.weight: no known form of weights has the tensors weight_scale \(F32\), weight",
        ),
    ],
)
def test_drafts_whose_scales_do_not_fit(
    target: Target, source: str, change: Change, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load_draft(copy_edited(ORACLES / source, tmp_path / "e", tensors=change), target)


def test_an_order_that_contradicts_the_zero_points(target: Target) -> None:
    with pytest.raises(ValueError, match=r"only exports from memory .* leave it at auto"):
        load_draft(ORACLES / "draft_mha_int4_pc_awq", target, int4_order="linear")


def excluding(*patterns: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def edit(config: dict[str, Any]) -> dict[str, Any]:
        config = json.loads(json.dumps(config))
        config["quantization_config"]["exclude"] = list(patterns)
        return config

    return edit


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["lm_head"], r"fc.weight: config.json says fp8_channel, its tensors are F16"),
        (
            ["fc", "lm_head", "re:.*self_attn.*"],
            r"q_proj.weight: config.json says no quantisation, its tensors are fp8_channel",
        ),
    ],
)
def test_excludes_that_contradict_the_tensors(
    target: Target, patterns: list[str], message: str, tmp_path: Path
) -> None:
    edited = copy_edited(
        ORACLES / "draft_mha_fp8_ptpc", tmp_path / "edited", config=excluding(*patterns)
    )
    with pytest.raises(ValueError, match=message):
        load_draft(edited, target)


@pytest.mark.parametrize("patterns", [["fc", "lm_head"], ["re:.*fc.*", "re:.*lm_head.*"]])
def test_plain_and_regular_excludes_mean_the_same(
    target: Target, patterns: list[str], tmp_path: Path
) -> None:
    """The published list's modules, formats included, bit for bit."""
    source = ORACLES / "draft_mha_fp8_ptpc"
    edited = copy_edited(source, tmp_path / "edited", config=excluding(*patterns))
    (found, weights), (published, expected) = (
        nnx.split(load_draft(path, target)) for path in (edited, source)
    )
    assert found == published
    for one, other in zip(*map(jax.tree.leaves, (weights, expected)), strict=True):
        assert one.dtype == other.dtype and np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "gptq"}, r"quant_method must be one of \('compressed-tensors', 'quark'"),
        ({"config_groups": {}}, "one group, got 'pack-quantized' and 0"),
        ({"config_groups": None}, "quantization_config of compressed-tensors is damaged"),
        ({"format": "marlin"}, "must have format 'pack-quantized' and one group, got 'marlin'"),
    ],
)
def test_schemes_that_no_release_uses(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "quantization_config": {**config["quantization_config"], **change}}

    edited = copy_edited(ORACLES / "kimi_int4_ct", tmp_path / "edited", config=edit)
    with pytest.raises(ValueError, match=message) as raised:
        load_target(edited)
    assert "config.json" in str(raised.value)
