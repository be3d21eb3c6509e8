"""Table of the published tensors of Kimi-K2.5 and of bare DeepSeek-V3 text models."""

from typing import Any

from convert.models.config_json import eos_to_hf, text_model_to_hf
from convert.models.latent_attention import latent_attention_rules
from convert.models.rules import TRANSPOSED_FLOATS, Rule, expert_rule, norm_rule, projection_rule
from eagle3_jax.config import KimiConfig

_LAYER = "layers.{layer}."
_MLP = _LAYER + "mlp."
_EXPERTS = _MLP + "experts."


def kimi_rules(config: KimiConfig) -> list[Rule]:
    """Return the table of one configuration, by canonical names (`unprefixed`)."""
    swiglu = ("gate_proj", "up_proj", "down_proj")
    projections = [
        *(_MLP + name for name in swiglu),
        *(_MLP + "shared_experts." + name for name in swiglu),
        "lm_head",
    ]
    norms = ["norm", _LAYER + "input_layernorm", _LAYER + "post_attention_layernorm"]
    bias = _MLP + "gate.e_score_correction_bias"
    return [
        Rule("embed_tokens.weight", ("embed_tokens.embedding",)),
        *map(norm_rule, norms),
        *map(projection_rule, projections),
        *latent_attention_rules(_LAYER + "self_attn.", config),
        *(expert_rule(_EXPERTS + "{expert}." + name, _EXPERTS + name) for name in swiglu),
        Rule(_MLP + "gate.weight", (_MLP + "gate.kernel",), TRANSPOSED_FLOATS),
        Rule(bias, (bias,), saved="F32"),
        Rule(
            "vision_tower.{rest}",
            why="the vision tower is no part of the text model; load_vision reads it",
        ),
        Rule(
            "mm_projector.{rest}",
            why="the projector is no part of the text model; load_vision reads it",
        ),
    ]


def published_kimi_name(name: str) -> str:
    """Return the released spelling of a canonical name."""
    inner = "" if name.startswith("lm_head.") else "model."
    return f"language_model.{inner}{name}"


def kimi_to_hf(config: KimiConfig, dtype: str) -> dict[str, Any]:
    """Return a Kimi-K2.5 config.json without its vision part; `dtype` is torch's name."""
    own = {
        "num_key_value_heads": config.num_attention_heads,
        "attention_bias": False,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "num_nextn_predict_layers": 0,
    }
    text = text_model_to_hf(config, "DeepseekV3ForCausalLM", "kimi_k2", dtype, **own)
    placeholder = config.media_placeholder_token_id
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        **eos_to_hf(config),
        **({} if placeholder is None else {"media_placeholder_token_id": placeholder}),
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "text_config": text,
    }
