"""The published tensors of Kimi-K2.5 (and of bare DeepSeek-V3 text models) as a table."""

import re

from convert.latent_attention import latent_attention_rules
from convert.rules import TRANSPOSED, TRANSPOSED_FLOATS, Rule, norm_rule, projection_rule
from eagle3_jax.config import TargetConfig

_LAYER = "layers.{layer}."
_MLP = _LAYER + "mlp."


def target_rules(config: TargetConfig) -> list[Rule]:
    """The table for one configuration; names are canonical, see `canonical_target_name`."""
    swiglu = ("gate_proj", "up_proj", "down_proj")
    projections = [
        *(_MLP + name for name in swiglu),
        *(_MLP + "shared_experts." + name for name in swiglu),
        "lm_head",
    ]
    norms = ["norm", _LAYER + "input_layernorm", _LAYER + "post_attention_layernorm"]
    bias = _MLP + "gate.e_score_correction_bias"
    attention = latent_attention_rules(
        _LAYER + "self_attn.",
        config.qk_nope_head_dim,
        config.v_head_dim,
        low_rank_queries=config.q_lora_rank is not None,
    )
    return [
        Rule("embed_tokens.weight", ("embed_tokens.embedding",)),
        *map(norm_rule, norms),
        *map(projection_rule, projections),
        *attention,
        *map(_experts_rule, swiglu),
        Rule(_MLP + "gate.weight", (_MLP + "gate.kernel",), TRANSPOSED_FLOATS),
        Rule(bias, (bias,), saved="F32"),
        Rule("vision_tower.{rest}", why="the vision tower is not part of the text model"),
        Rule("mm_projector.{rest}", why="the vision projector is not part of the text model"),
    ]


def _experts_rule(name: str) -> Rule:
    """One expert's matrix is a row of the stack."""
    published = _MLP + f"experts.{{expert}}.{name}.weight"
    return Rule(published, (_MLP + f"experts.{name}[{{expert}}]",), TRANSPOSED)


def canonical_target_name(name: str) -> str:
    """Strips the prefixes in use: language_model.model., model., language_model. (or none)."""
    return re.sub(r"^(language_model\.)?(model\.)?", "", name)


def published_target_name(name: str) -> str:
    """The released spelling of a canonical name."""
    inner = "" if name.startswith("lm_head.") else "model."
    return f"language_model.{inner}{name}"
