"""A draft's configuration in each published layout, and every option of it that is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
from published_configs import DRAFT, SPECULATORS, read_draft, read_latent

from eagle3_jax.config import (
    DraftConfig,
    LatentShape,
    RopeConfig,
    YarnConfig,
    canonical_aux_layer_ids,
    default_aux_layer_ids,
)
from eagle3_jax.config.draft import NORM_OPTIONS


def test_the_published_draft() -> None:
    config = read_draft()
    assert config == DraftConfig(
        vocab_size=163840,
        draft_vocab_size=163840,
        hidden_size=7168,
        target_hidden_size=7168,
        intermediate_size=12288,
        num_attention_heads=64,
        num_key_value_heads=64,
        head_dim=128,
        rms_norm_eps=1e-6,
        max_position_embeddings=262144,
        rope=RopeConfig(1000000.0),
        aux_layer_ids=(2, 30, 58),
    )
    assert config.num_aux == 3


def test_fields_a_draft_may_leave_out() -> None:
    left_out = ("draft_vocab_size", "head_dim", "num_key_value_heads")
    config = read_draft(**dict.fromkeys(left_out))
    found = config.draft_vocab_size, config.head_dim, config.num_key_value_heads
    assert found == (163840, 112, 64)
    assert read_draft(target_hidden_size=4096).target_hidden_size == 4096


def test_newer_transformers_write_rope_parameters() -> None:
    parameters = {"rope_theta": 5e4, "rope_type": "yarn", "factor": 64.0}
    parameters["original_max_position_embeddings"] = 4096
    config = read_draft(rope_theta=None, rope_parameters=parameters)
    assert config.rope == RopeConfig(5e4, YarnConfig(64.0, 4096))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", ["MistralForCausalLM"]),
        ("architectures", ["LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"]),
        ("architectures", 3),
        ("eagle_config", True),
        ("rope_scaling", "yarn"),
        ("rope_parameters", [1]),
        ("eagle_aux_hidden_state_layer_ids", [2, 30.0, 58]),
        ("hidden_size", 7168.5),
        ("num_attention_heads", True),
        ("rms_norm_eps", "small"),
        ("mlp_bias", True),
        ("num_hidden_layers", 2),
        ("tie_word_embeddings", True),
        ("fc_norm", "yes"),
        ("use_sliding_window", True),
        ("use_aux_hidden_state", False),
        ("use_input_layernorm_in_first_layer", False),
        ("use_last_layernorm", False),
        ("use_mtp_layernorm", True),
        ("num_aux_hidden_states", 2),
        ("rope_interleave", True),
    ],
)
def test_fields_of_another_type_or_with_another_arithmetic_are_refused(
    name: str, value: Any
) -> None:
    """At either level; test_config_fields has the options that targets refuse too."""
    nested: dict[str, Any] = {"eagle_config": {name: value}}
    for fields in ({name: value}, nested):
        with pytest.raises(ValueError, match="architecture" if name == "architectures" else name):
            read_draft(**fields)


def test_a_published_draft_with_latent_attention() -> None:
    """Its latent norms use its own epsilon; YaRN's magnitude squared is in its scale."""
    config = read_latent()
    shape = LatentShape(1536, 512, 128, 64, 128)
    assert config.latent == shape
    assert config.aux_layer_ids == (2, 30, 58)
    assert config.max_position_embeddings == 64 * 4096
    attention = config.latent_attention
    assert attention is not None
    assert (attention.input_size, attention.hidden_size) == (2 * 7168, 7168)
    assert (attention.latent_norm_eps, attention.latent_dim, config.rotary_dim) == (1e-5, 576, 64)
    assert attention.softmax_scale == pytest.approx(0.1446796258, abs=5e-11)
    native = read_latent(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 29, 57]})
    assert native == config
    assert read_latent(head_dim=128) == config
    full_rank = read_latent(q_lora_rank=None)
    assert full_rank.latent == replace(shape, q_lora_rank=None)
    assert read_draft().latent_attention is None


def test_rope_can_be_overridden_with_the_scale_that_follows_from_it() -> None:
    config = read_latent().with_rope(theta=10000, yarn_factor=32)
    yarn = YarnConfig(32.0, 4096, 1.0, 1.0, 1.0, 1.0)
    assert config == replace(read_latent(), rope=RopeConfig(10000.0, yarn))
    attention = config.latent_attention
    assert attention is not None
    assert attention.softmax_scale == pytest.approx(192**-0.5 * (1 + 0.1 * math.log(32)) ** 2)
    assert read_latent().with_rope() == read_latent()
    with pytest.raises(ValueError, match=r"yarn_factor.*no YaRN"):
        read_draft().with_rope(yarn_factor=32)
    with pytest.raises(ValueError, match="rope_theta must be greater than 1"):
        read_draft().with_rope(theta=0)


@pytest.mark.parametrize("name", NORM_OPTIONS)
def test_norms_of_eagle_31_are_off_unless_asked_for_at_either_level(name: str) -> None:
    plain = read_draft()
    assert not getattr(plain, name)
    on: dict[str, Any] = {name: True}
    off: dict[str, Any] = {name: False}
    unset: dict[str, Any] = {name: None}
    assert read_draft(**unset) == read_draft(**off) == plain
    assert read_draft(**on) == read_draft(eagle_config=on) == replace(plain, **on)
    with pytest.raises(ValueError, match=f"{name} is False, but True inside eagle_config"):
        read_draft(**off, eagle_config=on)


def test_the_number_of_aux_states_must_be_that_of_the_layers() -> None:
    ids: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": [7, 40]}
    assert read_draft(**ids, num_aux_hidden_states=2).num_aux == 2
    with pytest.raises(ValueError, match="num_aux_hidden_states is 4"):
        read_draft(num_aux_hidden_states=4)


@pytest.mark.parametrize(
    ("layers", "explicit", "canonical"),
    [
        (61, None, (2, 30, 58)),
        (62, None, (2, 31, 59)),
        (61, [1, 29, 57], (2, 30, 58)),
        (61, [2, 30, 58], (2, 30, 58)),
        (62, [1, 30, 58], (2, 31, 59)),
        (4, [0, 1, 2], (1, 2, 3)),
        (4, [3], (4,)),
        (8, [2, 4, 5], (2, 4, 5)),
    ],
)
def test_explicit_ids_are_outputs_unless_they_are_the_default_inputs(
    layers: int, explicit: list[int] | None, canonical: tuple[int, ...]
) -> None:
    assert canonical_aux_layer_ids(explicit, layers) == canonical
    for place in ("eagle_config", None):
        named = {"eagle_aux_hidden_state_layer_ids": explicit}
        config = read_draft(layers, **({place: named} if place else named))
        assert config.aux_layer_ids == canonical


def test_a_convention_overrides_the_reading() -> None:
    with pytest.raises(ValueError, match="sideways"):
        canonical_aux_layer_ids(None, 61, "sideways")  # pyright: ignore[reportArgumentType]
    assert canonical_aux_layer_ids([2, 30, 58], 61, "after") == (3, 31, 59)
    assert canonical_aux_layer_ids([1, 29, 57], 61, "before") == (1, 29, 57)
    assert canonical_aux_layer_ids(None, 61, "after") == default_aux_layer_ids(61)


@pytest.mark.parametrize("ids", [[61], [-2], [], [1, 2, 99]])
def test_ids_outside_the_target_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="61"):
        canonical_aux_layer_ids(ids, 61)


def test_speculators_nests_the_layer() -> None:
    """Without a field of its own a norm precedes the residual, as in vLLM."""
    plain = replace(read_draft(draft_vocab_size=32000), max_position_embeddings=2048)
    bare = {k: v for k, v in SPECULATORS.items() if k != "norm_before_residual"}
    for fields, before in (({}, True), ({"norm_before_residual": False}, False)):
        config = DraftConfig.from_hf({**bare, "fc_norm": True, **fields}, num_target_layers=61)
        assert config == replace(plain, fc_norm=True, norm_before_residual=before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "dflash"}, "speculators_model_type.*'dflash'"),
        ({"transformer_layer_config": None}, "must have a transformer_layer_config"),
        ({"transformer_layer_config": {"model_type": "qwen3"}}, "model_type.*'qwen3'"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "lacks vocab_size"),
        ({"norm_output": "yes"}, "norm_output"),
    ],
)
def test_speculators_of_another_kind_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftConfig.from_hf({**SPECULATORS, **changes}, num_target_layers=61)


def test_safeailab_names_its_drafts_like_a_plain_llama() -> None:
    """Only the draft vocabulary tells them apart."""
    plain = {k: v for k, v in DRAFT.items() if k != "draft_vocab_size"}
    theirs = {**plain, "architectures": ["LlamaForCausalLM"]}
    config = DraftConfig.from_hf({**theirs, "draft_vocab_size": 32000}, num_target_layers=61)
    assert config == read_draft(draft_vocab_size=32000)
    with pytest.raises(ValueError, match="this is a target"):
        DraftConfig.from_hf(theirs, num_target_layers=61)
