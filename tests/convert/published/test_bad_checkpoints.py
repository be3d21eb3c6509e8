"""Every checkpoint that does not fit ends in one clear error."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from edited import Tensors, copy_edited
from oracle_files import DRAFTS, ORACLES

from convert import load_draft, load_target
from eagle3_jax.models.target import Target

KIMI = ORACLES / "kimi_bf16"
FULL, REDUCED = (ORACLES / name for name in DRAFTS)
HEAD = "language_model.lm_head.weight"
EXPERT = "language_model.model.layers.1.mlp.experts.2.up_proj.weight"


def replaced(name: str, array: np.ndarray) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: array}


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: array for key, array in tensors.items() if key != name}


def setting(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda published: {**published, **fields}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced(HEAD, np.zeros((9, 128), np.float32)), r"expected shape \(576, 128\), got \(9"),
        (replaced(EXPERT, np.zeros((128, 64), np.float32)), r"expected shape \(64, 128\)"),
        (replaced("language_model.model.stray", np.zeros(1, np.float32)), "matched by 0 rules"),
        (replaced("lm_head.weight", np.zeros((576, 128), np.float32)), "filled more than once"),
        (without(EXPERT), r"mlp.experts.up_proj: no tensor for rows \[2\]"),
        (without(HEAD), "lm_head.kernel: no tensor in the checkpoint"),
        (
            replaced(EXPERT + "_packed", np.zeros((64, 16), np.int32)),
            r"up_proj.weight_scale: missing; INT4 of compressed-tensors .*beside weight_packed",
        ),
        (
            replaced(EXPERT, np.zeros((64, 64), np.uint8)),
            r"up_proj.weight_scale: missing; MXFP4 of Quark needs it",
        ),
        (
            replaced(EXPERT, np.zeros((64, 128), jnp.float8_e4m3fn)),
            r"up_proj.weight_scale: missing; FP8 per channel",
        ),
    ],
)
def test_target_tensors_that_do_not_fit(
    change: Callable[[Tensors], Tensors], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        load_target(copy_edited(KIMI, tmp_path / "edited", tensors=change))
    assert str(tmp_path / "edited") in str(raised.value)


@pytest.mark.parametrize(
    ("source", "change", "message"),
    [
        (FULL, replaced("stray", np.zeros(1, np.float32)), "stray: matched by 0 rules"),
        (FULL, without("fc.weight"), "fc.kernel: no tensor in the checkpoint"),
        (
            FULL,
            replaced("layers.0.hidden_norm.weight", np.zeros(128, np.float32)),
            "midlayer.hidden_norm.weight: filled more than once",
        ),
        (
            FULL,
            replaced("fc.weight", np.zeros((128, 192), np.float32)),
            "fc that reads 192 features, 3 aux layers of this target's hidden size 128 give 384",
        ),
        (
            FULL,
            replaced("midlayer.self_attn.k_proj.weight", np.zeros((64, 256), np.float32)),
            "num_key_value_heads 4 in config.json, but its k_proj .* holds 2 heads",
        ),
        (FULL, replaced("d2t", np.ones(576, np.int64)), "d2t that moves ids"),
        (REDUCED, replaced("d2t", np.full(192, 2**40)), "maps draft id 0 to 1099511627776"),
        (REDUCED, replaced("d2t", np.arange(-191, 1) - 1), "maps draft id 0 to -192"),
        (REDUCED, replaced("d2t", np.zeros(192, np.float32)), "d2t: dtype must be one of"),
        (REDUCED, without("d2t"), "d2t: no tensor in the checkpoint"),
        (REDUCED, without("lm_head.weight"), "needs an lm_head for its 192 draft ids"),
    ],
)
def test_draft_tensors_that_do_not_fit(
    target: Target,
    source: Path,
    change: Callable[[Tensors], Tensors],
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match=message):
        load_draft(copy_edited(source, tmp_path / "edited", tensors=change), target)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_hidden_size": 256}, "target of hidden size 256, this target has 128"),
        ({"hidden_size": 256}, "target of hidden size 256, this target has 128"),
        ({"vocab_size": 577}, "vocabulary of 577, this target has 576"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 in config.json"),
        ({"architectures": ["MistralForCausalLM"]}, "unknown draft architecture"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope type must be"),
        ({"rope_scaling": {"type": "yarn"}}, "config.json"),
    ],
)
def test_drafts_of_another_kind(
    target: Target, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    edited = copy_edited(FULL, tmp_path / "edited", config=setting(**fields))
    with pytest.raises(ValueError, match=message):
        load_draft(edited, target)


def test_a_draft_in_the_place_of_a_target() -> None:
    with pytest.raises(ValueError, match="beside its target, not in its place"):
        load_target(FULL)


def test_an_unknown_architecture(tmp_path: Path) -> None:
    text = setting(text_config={"model_type": "gpt2"})
    with pytest.raises(ValueError, match="unknown target architecture"):
        load_target(copy_edited(KIMI, tmp_path / "edited", config=text))


def test_a_missing_shard_and_a_truncated_one(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(KIMI, tmp_path / "copy"))
    shard = copy / "model-00002-of-000003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model-00002-of-000003.safetensors is truncated"):
        load_target(copy)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"missing: \['model-00002-of-000003"):
        load_target(copy)


def test_a_missing_or_broken_config(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(KIMI, tmp_path / "copy"))
    (copy / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        load_target(copy)
    (copy / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        load_target(copy)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_target(tmp_path / "nowhere")
