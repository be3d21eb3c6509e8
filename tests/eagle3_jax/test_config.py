"""Published configurations, as their authors wrote them, and every option that is refused."""

from typing import Any

import pytest

from eagle3_jax.config import (
    DraftConfig,
    RopeConfig,
    TargetConfig,
    YarnConfig,
    canonical_aux_layer_ids,
    default_aux_layer_ids,
)

KIMI_TEXT: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 163585,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 262144,
    "model_type": "kimi_k2",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 64.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 163840,
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "eos_token_id": 163585,
    "model_type": "kimi_k25",
    "text_config": KIMI_TEXT,
    "vision_config": {"patch_size": 14},
}
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "draft_vocab_size": 163840,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 12288,
    "max_position_embeddings": 262144,
    "model_type": "llama",
    "num_attention_heads": 64,
    "num_hidden_layers": 1,
    "num_key_value_heads": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 163840,
}


def read_draft(layers: int = 61, **changes: Any) -> DraftConfig:
    return DraftConfig.from_hf({**DRAFT, **changes}, num_target_layers=layers)


@pytest.mark.parametrize("published", [KIMI, KIMI_TEXT], ids=["whole", "text"])
def test_kimi_k25_is_read_whole_or_as_its_text_model(published: dict[str, Any]) -> None:
    config = TargetConfig.from_hf(published)
    expected = {name: KIMI_TEXT[name] for name in vars(config) if name in KIMI_TEXT}
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.eos_token_ids == (163585,)
    assert config.latent_norm_eps == 1e-6
    assert config.rope == RopeConfig(50000.0, YarnConfig(64.0, 4096, 32.0, 1.0, 1.0, 1.0))
    assert (config.qk_head_dim, config.latent_dim) == (192, 576)
    assert [config.is_dense(layer) for layer in range(3)] == [True, False, False]


def test_softmax_scale_has_yarns_magnitude_squared() -> None:
    assert TargetConfig.from_hf(KIMI).softmax_scale == pytest.approx(0.1446796258, abs=5e-11)
    plain = TargetConfig.from_hf({**KIMI_TEXT, "rope_scaling": None})
    assert plain.softmax_scale == pytest.approx(192**-0.5)


def test_cos_and_sin_keep_their_size_when_both_magnitudes_are_equal() -> None:
    yarn = TargetConfig.from_hf(KIMI).rope.yarn
    assert yarn is not None
    assert yarn.cos_sin_scale == 1.0
    assert YarnConfig(64.0, 4096).cos_sin_scale == pytest.approx(1.4158883, abs=1e-7)


@pytest.mark.parametrize(
    ("written", "read"), [(7, (7,)), ([7, 9], (7, 9)), (None, ())], ids=["one", "list", "none"]
)
def test_end_ids_may_be_one_number_or_a_list(written: Any, read: tuple[int, ...]) -> None:
    assert TargetConfig.from_hf({**KIMI_TEXT, "eos_token_id": written}).eos_token_ids == read


def test_the_query_may_have_full_rank() -> None:
    assert TargetConfig.from_hf({**KIMI_TEXT, "q_lora_rank": None}).q_lora_rank is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "llama"),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("n_group", 8),
        ("topk_group", 4),
        ("moe_layer_freq", 2),
        ("tie_word_embeddings", True),
        ("rope_interleave", False),
    ],
)
def test_target_options_that_would_change_the_arithmetic_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{value!r}"):
        TargetConfig.from_hf({**KIMI_TEXT, name: value})


def test_rope_types_other_than_yarn_are_refused() -> None:
    with pytest.raises(ValueError, match="linear"):
        TargetConfig.from_hf({**KIMI_TEXT, "rope_scaling": {"type": "linear", "factor": 2.0}})


def test_missing_target_fields_are_named_together() -> None:
    short = {k: v for k, v in KIMI_TEXT.items() if k not in ("vocab_size", "v_head_dim")}
    with pytest.raises(ValueError, match="lacks vocab_size, v_head_dim"):
        TargetConfig.from_hf(short)


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
    assert (config.draft_vocab_size, config.head_dim, config.num_key_value_heads) == (
        163840,
        112,
        64,
    )
    assert read_draft(target_hidden_size=4096).target_hidden_size == 4096


def test_newer_transformers_write_rope_parameters() -> None:
    parameters = {"rope_theta": 5e4, "rope_type": "yarn", "factor": 64.0}
    parameters["original_max_position_embeddings"] = 4096
    config = read_draft(rope_theta=None, rope_parameters=parameters)
    assert config.rope == RopeConfig(5e4, YarnConfig(64.0, 4096))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", ["LlamaForCausalLM"]),
        ("architectures", None),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("num_hidden_layers", 2),
        ("tie_word_embeddings", True),
        ("fc_norm", True),
        ("norm_before_fc", True),
        ("norm_output", True),
        ("norm_before_residual", True),
        ("use_sliding_window", True),
    ],
)
def test_draft_options_that_would_change_the_arithmetic_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="architecture" if name == "architectures" else name):
        read_draft(**{name: value})
    if name != "architectures":
        with pytest.raises(ValueError, match=name):
            read_draft(eagle_config={name: value})


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
    assert canonical_aux_layer_ids([2, 30, 58], 61, "after") == (3, 31, 59)
    assert canonical_aux_layer_ids([1, 29, 57], 61, "before") == (1, 29, 57)
    assert canonical_aux_layer_ids(None, 61, "after") == default_aux_layer_ids(61)


@pytest.mark.parametrize("ids", [[61], [-2], [], [1, 2, 99]])
def test_ids_outside_the_target_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="61"):
        canonical_aux_layer_ids(ids, 61)


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(ValueError, match="sideways"):
        canonical_aux_layer_ids(None, 61, "sideways")  # pyright: ignore[reportArgumentType]
