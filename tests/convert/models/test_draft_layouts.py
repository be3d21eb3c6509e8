"""Drafts as other projects lay them out, and what is written back: load, save, load."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited import Tensors, copy_edited
from like_whole import assert_same_weights
from oracle_files import DRAFTS, LATENT_DRAFT, ORACLES

from convert import load_draft, save_hf
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target

GROUPED, REDUCED, LATENT = (ORACLES / name for name in (*DRAFTS, LATENT_DRAFT))
HIDDEN = 128
LAYER_FIELDS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "num_hidden_layers", "rope_theta"),
    *("rope_scaling", "rope_parameters", "hidden_act", "max_position_embeddings"),
)
NORM_TENSORS = {
    "norm_before_fc": {"input_norm": 3 * HIDDEN},
    "fc_norm": {f"fc_norm.{i}": HIDDEN for i in range(3)},
    "norm_before_residual": {},
    "norm_output": {},
}


def assert_same(ours: Eagle3Draft, theirs: Eagle3Draft) -> None:
    assert ours.config == theirs.config
    assert_same_weights(ours, theirs)


def assert_survives(draft: Eagle3Draft, target: Target, saved: Path) -> None:
    save_hf(draft, saved)
    assert_same(load_draft(saved, target), draft)


def layer_at(prefix: str) -> Callable[[Tensors], Tensors]:
    """Names the layer's tensors in another way."""
    return lambda tensors: {
        re.sub(r"^midlayer\.", prefix, name): tensor for name, tensor in tensors.items()
    }


def with_norms(*options: str) -> Callable[[Tensors], None]:
    """Adds the norms that these options ask for, all different."""

    def add(tensors: Tensors) -> None:
        like = tensors["norm.weight"].dtype
        for option in options:
            for number, (name, size) in enumerate(NORM_TENSORS[option].items()):
                values = 1 + (np.arange(size) % 16 + number) / 16
                tensors[f"{name}.weight"] = values.astype(like)

    return add


def speculators(published: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": published["draft_vocab_size"],
        "norm_before_residual": False,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": {
            "model_type": "llama",
            **{name: published[name] for name in LAYER_FIELDS if name in published},
        },
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "kimi"}},
    }


def test_a_speculators_draft_is_the_same_draft(target: Target, tmp_path: Path) -> None:
    """Names begin with layers.0; the verifier's embedding is not in the file."""

    def rename(tensors: Tensors) -> Tensors:
        del tensors["embed_tokens.weight"]
        return layer_at("layers.0.")(tensors)

    theirs = copy_edited(REDUCED, tmp_path / "draft", tensors=rename, config=speculators)
    loaded, plain = load_draft(theirs, target), load_draft(REDUCED, target)
    assert loaded.embed_tokens is target.embed_tokens
    plain.embed_tokens = target.embed_tokens
    assert_same(loaded, plain)


def like_a_plain_llama(published: dict[str, Any]) -> None:
    published["architectures"] = ["LlamaForCausalLM"]


def without_positions(published: dict[str, Any]) -> None:
    del published["max_position_embeddings"]


@pytest.mark.parametrize(
    ("source", "prefix", "config"),
    [
        pytest.param(REDUCED, "layers.0.", None, id="layers"),
        pytest.param(REDUCED, "model.layers.0.", None, id="model-layers"),
        pytest.param(REDUCED, "model.midlayer.", None, id="model-midlayer"),
        pytest.param(REDUCED, "midlayer.", like_a_plain_llama, id="safeailab"),
        pytest.param(LATENT, "layers.0.", without_positions, id="vllm-latent"),
    ],
)
def test_other_layouts_hold_the_same_draft(
    target: Target,
    source: Path,
    prefix: str,
    config: Callable[[dict[str, Any]], None] | None,
    tmp_path: Path,
) -> None:
    theirs = copy_edited(source, tmp_path / "draft", tensors=layer_at(prefix), config=config)
    assert_same(load_draft(theirs, target), load_draft(source, target))


def test_a_latent_draft_with_full_rank_queries(target: Target, tmp_path: Path) -> None:
    def widen(tensors: Tensors) -> None:
        for part in ("q_a_proj", "q_a_layernorm", "q_b_proj"):
            old = tensors.pop(f"midlayer.self_attn.{part}.weight")
        tensors["midlayer.self_attn.q_proj.weight"] = np.ones((96, 2 * HIDDEN), old.dtype)

    def unrank(published: dict[str, Any]) -> None:
        published["q_lora_rank"] = None

    source = copy_edited(LATENT, tmp_path / "draft", tensors=widen, config=unrank)
    draft = load_draft(source, target)
    assert_survives(draft, target, tmp_path / "saved")
    assert draft.midlayer.self_attn.q_proj.kernel.get_value().shape == (2 * HIDDEN, 96)


@pytest.mark.parametrize(
    "options", [("norm_before_fc", "norm_output"), ("fc_norm", "norm_before_residual")]
)
@pytest.mark.parametrize("source", [GROUPED, LATENT], ids=lambda path: path.name)
def test_eagle_31_norms_survive_the_round_trip(
    target: Target, source: Path, options: tuple[str, ...], tmp_path: Path
) -> None:
    newer = copy_edited(
        source,
        tmp_path / "draft",
        tensors=with_norms(*options),
        config=lambda published: {**published, **dict.fromkeys(options, True)},
    )
    draft = load_draft(newer, target)
    assert {name for name in NORM_TENSORS if getattr(draft.config, name)} == set(options)
    assert_survives(draft, target, tmp_path / "saved")


def test_norms_of_three_layers_have_legacy_names(target: Target, tmp_path: Path) -> None:
    def legacy(tensors: Tensors) -> None:
        with_norms("fc_norm")(tensors)
        for number, name in enumerate(("low", "mid", "high")):
            tensors[f"aux_norm_{name}.weight"] = tensors.pop(f"fc_norm.{number}.weight")

    on = {"fc_norm": True}
    pair = [
        copy_edited(GROUPED, tmp_path / name, tensors=add, config=lambda c: {**c, **on})
        for name, add in (("legacy", legacy), ("newer", with_norms("fc_norm")))
    ]
    assert_same(*(load_draft(directory, target) for directory in pair))


def test_a_single_aux_layer_survives_the_round_trip(target: Target, tmp_path: Path) -> None:
    def narrow(tensors: Tensors) -> None:
        tensors["fc.weight"] = np.ascontiguousarray(tensors["fc.weight"][:, :HIDDEN])

    def first_layer(published: dict[str, Any]) -> None:
        published["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1]}
        published["num_aux_hidden_states"] = 1

    draft = load_draft(
        copy_edited(GROUPED, tmp_path / "draft", tensors=narrow, config=first_layer), target
    )
    assert draft.config.aux_layer_ids == (2,)
    assert_survives(draft, target, tmp_path / "saved")
