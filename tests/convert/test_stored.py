"""A converted checkpoint is the published one: the same model, bit for bit."""

import json
from pathlib import Path

import pytest
from flax import nnx
from like_whole import assert_same_weights
from oracle_files import ORACLES
from sweeps import sweep

from convert import load_draft, load_target
from convert.conversion.cli import main
from eagle3_jax.models.target import Target

TARGETS = (
    *("kimi_bf16", "kimi_int4_ct", "kimi_mxfp4_quark", "kimi_w4a8_quark"),
    *("minimax_bf16", "minimax_fp8block"),
)
DRAFTS = (
    "draft_mha_d2t_bf16",
    "draft_mha_fp8_ptpc",
    "draft_mha_int4_pc_awq",
    "draft_mla_bf16",
)


def converted(name: str, into: Path, *flags: str) -> Path:
    assert main([str(ORACLES / name), str(into / name), *flags]) == 0
    return into / name


def assert_same_model(ours: nnx.Module, theirs: nnx.Module) -> None:
    assert str(nnx.graphdef(ours)) == str(nnx.graphdef(theirs))
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("name", sweep(TARGETS, ["kimi_w4a8_quark", "minimax_fp8block"]))
def test_a_converted_target_is_the_published_one(name: str, tmp_path: Path) -> None:
    stored = converted(name, tmp_path)
    assert main(["--verify", str(ORACLES / name), str(stored)]) == 0
    for activations in (True, False):
        assert_same_model(
            load_target(stored, quantize_activations=activations),
            load_target(ORACLES / name, quantize_activations=activations),
        )


@pytest.mark.parametrize("name", DRAFTS)
def test_a_converted_draft_is_the_published_one(name: str, target: Target, tmp_path: Path) -> None:
    stored = converted(name, tmp_path)
    assert_same_model(load_draft(stored, target), load_draft(ORACLES / name, target))


def test_the_order_of_int4_was_decided_by_the_conversion(target: Target, tmp_path: Path) -> None:
    linear = converted("draft_mha_int4_pc", tmp_path, "--int4-order", "awq")
    wrong = load_draft(linear, target)
    expected = load_draft(ORACLES / "draft_mha_int4_pc", target, int4_order="awq")
    assert_same_model(wrong, expected)
    with pytest.raises(ValueError, match="int4_order was decided when"):
        load_draft(linear, target, int4_order="linear")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kimi_int4_ct", "no parameter layers.1.mlp.experts.* to keep quantised"),
        ("kimi_bf16", r"parameters missing \['layers.1.mlp.down_proj.kernel"),
    ],
)
def test_a_store_beside_another_config_is_refused(name: str, message: str, tmp_path: Path) -> None:
    stored = converted(name, tmp_path)
    config = json.loads((stored / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["first_k_dense_replace"] = 2
    (stored / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_target(stored)
