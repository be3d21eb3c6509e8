"""Table of the published tensors of Llama."""

from typing import Any

from convert.models.config_json import text_model_to_hf
from convert.models.rules import Rule, norm_rule, projection_rule
from eagle3_jax.config.llama import LlamaConfig

_LAYER = "layers.{layer}."


def llama_rules(config: LlamaConfig) -> list[Rule]:
    """Return the table, the same for all configurations; names lack the prefix `model.`."""
    norms = ("norm", _LAYER + "input_layernorm", _LAYER + "post_attention_layernorm")
    projections = [
        *(_LAYER + f"self_attn.{name}_proj" for name in "qkvo"),
        *(_LAYER + f"mlp.{name}_proj" for name in ("gate", "up", "down")),
        "lm_head",
    ]
    return [
        Rule("embed_tokens.weight", ("embed_tokens.embedding",)),
        *map(norm_rule, norms),
        *map(projection_rule, projections),
        Rule(_LAYER + "self_attn.rotary_emb.inv_freq", why="computed from the configuration"),
    ]


def llama_to_hf(config: LlamaConfig, dtype: str) -> dict[str, Any]:
    biases = {"attention_bias": False, "mlp_bias": False}
    return text_model_to_hf(config, "LlamaForCausalLM", "llama", dtype, **biases)
