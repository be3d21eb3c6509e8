"""Every checkpoint that does not fit ends in one clear error."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edited import Tensors, copy_edited
from flax import nnx
from oracle_files import DRAFTS, LATENT_DRAFT, ORACLES

from convert import load_draft, load_target
from eagle3_jax.models.target import Target

KIMI, INT4, MXFP4 = "kimi_bf16", "kimi_int4_ct", "kimi_mxfp4_quark"
W4A8, FP8, AWQ = "kimi_w4a8_quark", "draft_mha_fp8_ptpc", "draft_mha_int4_pc_awq"
FULL, REDUCED = DRAFTS
HEAD = "language_model.lm_head.weight"
EXPERT = "language_model.model.layers.1.mlp.experts.2.up_proj"
QUERY, KEY = "midlayer.self_attn.q_proj", "midlayer.self_attn.k_proj"
HIDDEN = 128
Changes = dict[str, Callable[[Any], Any]]


def replaced(name: str, array: np.ndarray) -> Changes:
    return {"tensors": lambda tensors: {**tensors, name: array}}


def zeros(name: str, *shape: int, dtype: Any = np.float32) -> Changes:
    return replaced(name, np.zeros(shape, dtype))


def without(name: str) -> Changes:
    return {"tensors": lambda tensors: {key: a for key, a in tensors.items() if key != name}}


def edited(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Changes:
    return {"tensors": lambda tensors: {**tensors, name: edit(tensors[name])}}


def first(name: str, value: Any) -> Changes:
    """Put `value` into the first element of a tensor."""

    def edit(array: np.ndarray) -> np.ndarray:
        flat = array.reshape(-1).copy()
        flat[0] = value
        return flat.reshape(array.shape)

    return edited(name, edit)


def setting(**fields: Any) -> Changes:
    return {"config": lambda published: {**published, **fields}}


def excluding(*patterns: str) -> Changes:
    def edit(config: dict[str, Any]) -> dict[str, Any]:
        section = config["quantization_config"] | {"exclude": list(patterns)}
        return config | {"quantization_config": section}

    return {"config": edit}


def infinite_product(tensors: Tensors) -> None:
    for part in ("weight_scale", "weight_scale_2"):
        tensors[f"{EXPERT}.{part}"] = np.full_like(tensors[f"{EXPERT}.{part}"], 3e38)


def uneven(tensors: Tensors) -> None:
    """Remove a word of eight inputs, and with the last group its scale: 15 words, 3 scales."""
    for name in (f"{EXPERT}.weight_packed", f"{EXPERT}.weight_scale"):
        tensors[name] = np.ascontiguousarray(tensors[name][:, :-1])


def unpacked(tensors: Tensors) -> Tensors:
    kept = {k: v for k, v in tensors.items() if not k.startswith(f"{EXPERT}.")}
    return {**kept, f"{EXPERT}.weight": np.zeros((64, 128), jnp.bfloat16)}


def fc_norms(tensors: Tensors) -> None:
    tensors |= {f"fc_norm.{i}.weight": np.ones(HIDDEN, jnp.bfloat16) for i in range(3)}


SCALE = f"{EXPERT}.weight_scale"
NARROW_HEAD = r"expected shape \(576, 128\), got \(9"
TARGETS: list[tuple[str, Changes, str]] = [
    (KIMI, zeros(HEAD, 9, 128), NARROW_HEAD),
    (KIMI, zeros(f"{EXPERT}.weight", 128, 64), r"expected shape \(64, 128\)"),
    (KIMI, zeros("language_model.model.stray", 1), "matched by 0 rules"),
    (KIMI, zeros("lm_head.weight", 576, 128), "filled more than once"),
    (KIMI, without(f"{EXPERT}.weight"), r"mlp.experts.up_proj: no tensor for rows \[2\]"),
    (KIMI, without(HEAD), "lm_head.kernel: no tensor in the checkpoint"),
    (
        KIMI,
        zeros(f"{EXPERT}.weight_packed", 64, 16, dtype=np.int32),
        r"up_proj.weight_scale: missing; INT4 of compressed-tensors .*beside weight_packed",
    ),
    (
        KIMI,
        zeros(f"{EXPERT}.weight", 64, 64, dtype=np.uint8),
        r"up_proj.weight_scale: missing; MXFP4 of Quark needs it",
    ),
    (
        KIMI,
        zeros(f"{EXPERT}.weight", 64, 128, dtype=jnp.float8_e4m3fn),
        r"up_proj.weight_scale: missing; FP8 per channel",
    ),
    (INT4, without(SCALE), "up_proj.weight_scale: missing; INT4 of compressed-tensors"),
    (INT4, edited(SCALE, lambda a: a[:, :-1]), r"expected shape \(64, 4\), got \(64, 3\)"),
    (INT4, first(SCALE, np.nan), "experts.2.up_proj.weight: the scales hold infinities or NaN"),
    (
        INT4,
        first(f"{EXPERT}.weight_shape", 128),
        r"weight_shape says \[128, 128\], weight_packed holds \[64, 128\]",
    ),
    (
        INT4,
        {"tensors": uneven},
        r"up_proj.weight_packed: expected inputs in groups of 32, .*; got 120 inputs",
    ),
    (INT4, {"tensors": unpacked}, "layers.1.mlp.experts.up_proj: its rows differ in form"),
    (MXFP4, first(SCALE, 255), r"up_proj.weight: the scales hold NaN \(e8m0 byte 255\)"),
    (MXFP4, edited(SCALE, lambda a: a.T), r"expected shape \(64, 4\), got \(4, 64\)"),
    (
        W4A8,
        edited(f"{EXPERT}.weight_scale_2", lambda a: a[None]),
        r"weight_scale_2: expected shape \(64,\) or \(64, 1\), got \(1, 64\)",
    ),
    (W4A8, without(SCALE), "up_proj.weight_scale: missing; progressive INT4"),
    (
        W4A8,
        {"tensors": infinite_product},
        "up_proj.weight: the scales hold infinities or NaN",
    ),
    (KIMI, setting(text_config={"model_type": "gpt2"}), "unknown target architecture"),
]


@pytest.mark.parametrize(("source", "changes", "message"), TARGETS)
def test_target_tensors_that_do_not_fit(
    source: str, changes: Changes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        load_target(copy_edited(ORACLES / source, tmp_path / "edited", **changes))
    assert str(tmp_path / "edited") in str(raised.value)


def test_one_error_lists_every_misfit(tmp_path: Path) -> None:
    layer = "language_model.model.layers.1.mlp.experts."

    def spoil(tensors: Tensors) -> None:
        tensors["language_model.model.norm.weight"] = np.zeros(5, np.float32)
        tensors[f"{layer}9.up_proj.weight"] = tensors[f"{EXPERT}.weight"]
        tensors[f"{layer}02.up_proj.weight"] = tensors.pop(f"{EXPERT}.weight")
        tensors["language_model.model.layers.7.input_layernorm.weight"] = np.zeros(128, np.float32)
        tensors["stray"] = np.zeros(1, np.float32)
        del tensors[HEAD]

    with pytest.raises(ValueError) as raised:
        load_target(copy_edited(ORACLES / KIMI, tmp_path / "edited", tensors=spoil))
    for misfit in (
        "norm.weight: expected shape (128,), got (5,)",
        "experts.9.up_proj.weight: layers.1.mlp.experts.up_proj has only 6 rows",
        "experts.02.up_proj.weight: matched by 0 rules",
        "layers.1.mlp.experts.up_proj: no tensor for rows [2]",
        "the model has no parameter layers.7.input_layernorm",
        "stray: matched by 0 rules",
        "lm_head.kernel: no tensor in the checkpoint",
    ):
        assert misfit in str(raised.value)


FC = "fc that reads 192 features, 3 aux layers of this target's hidden size 128 give 384"
HEADS = "num_key_value_heads 4 in config.json, but its k_proj .* holds 2 heads"
TWICE = "midlayer.hidden_norm.weight: filled more than once"
OTHER_SIZE = "target of hidden size 256, this target has 128"
UNEXCLUDED = r"q_proj.weight: config.json says no quantisation, its tensors are fp8_channel"
MISFITS: list[tuple[str, Changes, str]] = [
    (FULL, zeros("stray", 1), "stray: matched by 0 rules"),
    (FULL, without("fc.weight"), "fc.kernel: no tensor in the checkpoint"),
    (FULL, zeros("layers.0.hidden_norm.weight", HIDDEN), TWICE),
    (FULL, zeros("fc.weight", HIDDEN, 192), FC),
    (FULL, zeros(f"{KEY}.weight", 64, 256), HEADS),
    (FULL, replaced("d2t", np.ones(576, np.int64)), "d2t that moves ids"),
    (REDUCED, replaced("d2t", np.full(192, 2**40)), "maps draft id 0 to 1099511627776"),
    (REDUCED, replaced("d2t", np.arange(-191, 1) - 1), "maps draft id 0 to -192"),
    (REDUCED, zeros("d2t", 192), "d2t: dtype must be one of"),
    (REDUCED, without("d2t"), "d2t: no tensor in the checkpoint"),
    (REDUCED, without("lm_head.weight"), "needs an lm_head for its 192 draft ids"),
    # Quantised weights.
    (FP8, first(f"{QUERY}.weight_scale", np.inf), "q_proj.weight: the scales hold infinities"),
    (FP8, first(f"{QUERY}.weight", np.nan), "q_proj.weight: the weights hold NaN"),
    (
        FP8,
        edited(f"{QUERY}.weight_scale", lambda a: a[:-1]),
        r"weight_scale: expected shape \(128,\) or \(128, 1\), got \(127,\)",
    ),
    (AWQ, first(f"{QUERY}.weight_zero_point", 1), "only symmetric INT4 is supported"),
    (
        FP8,
        replaced("fc.weight_scale", np.ones(HIDDEN, np.float32)),
        r"fc.weight: no known form of weights has the tensors weight_scale \(F32\), weight",
    ),
    (FP8, excluding("lm_head"), "fc.weight: config.json says fp8_channel, its tensors are F16"),
    (FP8, excluding("fc", "lm_head", "re:.*self_attn.*"), UNEXCLUDED),
    (FP8, excluding("re:("), r"exclude pattern 're:\(' is no regular expression"),
    # Configurations.
    (FULL, setting(target_hidden_size=256), OTHER_SIZE),
    (FULL, setting(hidden_size=256), OTHER_SIZE),
    (FULL, setting(vocab_size=577), "vocabulary of 577, this target has 576"),
    (FULL, setting(num_key_value_heads=2), "num_key_value_heads 2 in config.json"),
    (FULL, setting(architectures=["MistralForCausalLM"]), "unknown draft architecture"),
    (FULL, setting(rope_scaling={"type": "linear", "factor": 2}), "rope type must be"),
    (FULL, setting(rope_scaling={"type": "yarn"}), "config.json"),
    # Norms of EAGLE-3.1.
    (FULL, {"tensors": fc_norms}, r"fc_norm\.0\.weight: matched by 0 rules"),
    (FULL, zeros("input_norm.weight", 3 * HIDDEN), r"input_norm\.weight: matched by 0 rules"),
    (FULL, setting(fc_norm=True), r"fc_norm\.0\.weight: no tensor in the checkpoint"),
    (FULL, setting(norm_before_fc=True), r"input_norm\.weight: no tensor in the checkpoint"),
    (
        FULL,
        zeros("input_norm.weight", HIDDEN) | setting(norm_before_fc=True),
        r"input_norm\.weight: expected shape \(384,\), got \(128,\)",
    ),
    (FULL, setting(num_aux_hidden_states=4), "num_aux_hidden_states is 4"),
    # Widths of latent attention.
    (LATENT_DRAFT, setting(kv_lora_rank=24), r"with_mqa\.weight: expected shape \(32, 256\)"),
    (LATENT_DRAFT, setting(v_head_dim=12), r"o_proj\.weight: expected shape \(128, 48\)"),
    (LATENT_DRAFT, setting(q_lora_rank=None), r"q_a_proj\.weight: matched by 0 rules"),
    (LATENT_DRAFT, setting(kv_lora_rank=None), "lacks kv_lora_rank"),
    (
        LATENT_DRAFT,
        setting(architectures=["LlamaForCausalLMEagle3"]),
        "kv_b_proj.weight: matched by 0 rules",
    ),
]


@pytest.mark.parametrize(("source", "changes", "message"), MISFITS)
def test_draft_tensors_that_do_not_fit(
    target: Target, source: str, changes: Changes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load_draft(copy_edited(ORACLES / source, tmp_path / "edited", **changes), target)


def test_an_order_that_contradicts_the_zero_points(target: Target) -> None:
    with pytest.raises(ValueError, match=r"only exports from memory .* leave it at auto"):
        load_draft(ORACLES / AWQ, target, int4_order="linear")


@pytest.mark.parametrize("patterns", [["fc", "lm_head"], ["re:.*fc.*", "re:.*lm_head.*"]])
def test_plain_and_regular_excludes_mean_the_same(
    target: Target, patterns: list[str], tmp_path: Path
) -> None:
    """The published list's modules, formats included, bit for bit."""
    source = ORACLES / FP8
    copy = copy_edited(source, tmp_path / "edited", **excluding(*patterns))
    (found, weights), (published, expected) = (
        nnx.split(load_draft(path, target)) for path in (copy, source)
    )
    assert found == published
    for one, other in zip(*map(jax.tree.leaves, (weights, expected)), strict=True):
        assert one.dtype == other.dtype and np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_draft_in_the_place_of_a_target() -> None:
    with pytest.raises(ValueError, match="beside its target, not in its place"):
        load_target(ORACLES / FULL)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(ORACLES / KIMI, tmp_path / "copy"))
    shard = copy / "model-00002-of-000003.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"model-00002-of-000003.safetensors is truncated"):
        load_target(copy)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"missing: \['model-00002-of-000003"):
        load_target(copy)
    shard.write_bytes(whole)
    (copy / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        load_target(copy)
    (copy / "config.json").write_text(json.dumps({"text_config": {"model_type": "kimi_k2"}}))
    with pytest.raises(ValueError, match=r"copy/config.json: config.json lacks vocab_size"):
        load_target(copy)
    (copy / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        load_target(copy)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_target(tmp_path / "nowhere")
