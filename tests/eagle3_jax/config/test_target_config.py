"""The target's configuration, and every option of it that is refused."""

import json
from typing import Any

import pytest
from oracle_files import ORACLES
from published_configs import KIMI, KIMI_TEXT, MINIMAX

from eagle3_jax.config import KimiConfig, RopeConfig, YarnConfig, read_target_config


@pytest.mark.parametrize("published", [KIMI, KIMI_TEXT], ids=["whole", "text"])
def test_kimi_k25_is_read_whole_or_as_its_text_model(published: dict[str, Any]) -> None:
    config = KimiConfig.from_hf(published)
    expected = {name: KIMI_TEXT[name] for name in vars(config) if name in KIMI_TEXT}
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.eos_token_ids == (163585,)
    assert config.latent_norm_eps == 1e-6
    assert config.rope == RopeConfig(50000.0, YarnConfig(64.0, 4096, 32.0, 1.0, 1.0, 1.0))
    attention = config.latent_attention
    assert (attention.qk_head_dim, attention.latent_dim) == (192, 576)
    assert [config.is_dense(layer) for layer in range(3)] == [True, False, False]


def test_softmax_scale_has_yarns_magnitude_squared() -> None:
    assert KimiConfig.from_hf(KIMI).latent_attention.softmax_scale == pytest.approx(
        0.1446796258, abs=5e-11
    )
    plain = KimiConfig.from_hf({**KIMI_TEXT, "rope_scaling": None})
    assert plain.latent_attention.softmax_scale == pytest.approx(192**-0.5)


def test_cos_and_sin_keep_their_size_when_both_magnitudes_are_equal() -> None:
    yarn = KimiConfig.from_hf(KIMI).rope.yarn
    assert yarn is not None
    assert yarn.cos_sin_scale == 1.0
    assert YarnConfig(64.0, 4096).cos_sin_scale == pytest.approx(1.4158883, abs=1e-7)


@pytest.mark.parametrize(
    ("written", "read"), [(7, (7,)), ([7, 9], (7, 9)), (None, ())], ids=["one", "list", "none"]
)
def test_end_ids_may_be_one_number_or_a_list(written: Any, read: tuple[int, ...]) -> None:
    assert KimiConfig.from_hf({**KIMI_TEXT, "eos_token_id": written}).eos_token_ids == read


@pytest.mark.parametrize("published", ["kimi_bf16", "minimax_bf16"])
@pytest.mark.parametrize(
    ("name", "foreign"),
    [("model_type", "llava"), ("architectures", ["LlavaForConditionalGeneration"])],
)
def test_a_foreign_name_is_refused_wherever_it_stands(
    published: str, name: str, foreign: Any
) -> None:
    """A text_config of Kimi's inside another model is no Kimi."""
    config = json.loads((ORACLES / published / "config.json").read_text())
    read_target_config(config)
    changed = [{**config, name: foreign}]
    if text := config.get("text_config"):
        changed += [{**config, "text_config": {**text, name: foreign}}, {**text, name: foreign}]
    for fields in changed:
        with pytest.raises(ValueError, match=f"{name} must be .*[Ll]lava"):
            read_target_config(fields)


def test_missing_target_fields_are_named_together() -> None:
    short = {k: v for k, v in KIMI_TEXT.items() if k not in ("vocab_size", "v_head_dim")}
    with pytest.raises(ValueError, match="lacks vocab_size, v_head_dim"):
        KimiConfig.from_hf(short)


REFUSED: list[tuple[dict[str, Any], str, Any]] = [
    (KIMI_TEXT, "model_type", "gpt2"),
    (KIMI_TEXT, "scoring_func", "softmax"),
    (KIMI_TEXT, "topk_method", "greedy"),
    (KIMI_TEXT, "n_group", 8),
    (KIMI_TEXT, "topk_group", 4),
    (KIMI_TEXT, "moe_layer_freq", 2),
    (KIMI_TEXT, "tie_word_embeddings", True),
    (KIMI_TEXT, "rope_interleave", False),
    (KIMI_TEXT, "hidden_size", "7168"),
    (KIMI_TEXT, "kv_lora_rank", 0),
    (KIMI_TEXT, "q_lora_rank", -1),
    (KIMI_TEXT, "num_experts_per_tok", 385),
    (KIMI_TEXT, "rms_norm_eps", float("nan")),
    (KIMI_TEXT, "norm_topk_prob", "yes"),
    (KIMI_TEXT, "rope_theta", 0.0),
    (KIMI_TEXT, "eos_token_id", "end"),
    (KIMI_TEXT, "text_config", True),
    (MINIMAX, "qk_norm_type", "per_head"),
    (MINIMAX, "use_qk_norm", False),
    (MINIMAX, "use_routing_bias", False),
    (MINIMAX, "shared_intermediate_size", 1536),
    (MINIMAX, "scoring_func", "softmax"),
    (MINIMAX, "attn_type_list", [1, 0]),
    (MINIMAX, "rotary_dim", 63),
    (MINIMAX, "rotary_dim", 130),
    (MINIMAX, "num_key_value_heads", 7),
    (MINIMAX, "num_experts_per_tok", 257),
]
YARN = [
    ("type", "linear"),
    ("factor", float("inf")),
    ("factor", 0),
    ("beta_fast", "32"),
    ("original_max_position_embeddings", None),
]


@pytest.mark.parametrize(("published", "name", "value"), REFUSED)
def test_what_is_not_implemented_or_makes_no_sense_is_refused(
    published: dict[str, Any], name: str, value: Any
) -> None:
    with pytest.raises(ValueError, match=name):
        read_target_config({**published, name: value})


@pytest.mark.parametrize(("name", "value"), YARN)
def test_yarn_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    scaling = {**KIMI_TEXT["rope_scaling"], name: value}
    with pytest.raises(ValueError, match=name):
        read_target_config({**KIMI_TEXT, "rope_scaling": scaling})
