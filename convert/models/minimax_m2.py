"""Table of the published tensors of MiniMax-M2.5."""

from typing import Any

from convert.models.config_json import text_model_to_hf
from convert.models.rules import TRANSPOSED_FLOATS, Rule, expert_rule, norm_rule, projection_rule
from eagle3_jax.config import MiniMaxConfig

_LAYER = "layers.{layer}."
_ATTENTION = _LAYER + "self_attn."
_EXPERTS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def minimax_rules(config: MiniMaxConfig) -> list[Rule]:
    """Return the table of one configuration; names lack the prefix `model.`."""
    block, bias = _LAYER + "block_sparse_moe.", "gate.e_score_correction_bias"
    norms = [
        "norm",
        *(_LAYER + name for name in ("input_layernorm", "post_attention_layernorm")),
        *(_ATTENTION + name for name in ("q_norm", "k_norm")),
    ]
    mtp = "multi-token prediction, whose work a draft does"
    return [
        Rule("embed_tokens.weight", ("embed_tokens.embedding",)),
        *map(norm_rule, norms),
        *(projection_rule(_ATTENTION + f"{name}_proj") for name in "qkvo"),
        projection_rule("lm_head"),
        *(
            expert_rule(block + f"experts.{{expert}}.{published}", _LAYER + f"mlp.experts.{ours}")
            for published, ours in _EXPERTS.items()
        ),
        Rule(block + "gate.weight", (_LAYER + "mlp.gate.kernel",), TRANSPOSED_FLOATS, saved="F32"),
        Rule(block + "e_score_correction_bias", (_LAYER + "mlp." + bias,), saved="F32"),
        *(Rule(f"layers.{layer}.{{rest}}", why=mtp, above=True) for layer in config.mtp_layers),
    ]


def minimax_to_hf(config: MiniMaxConfig, dtype: str) -> dict[str, Any]:
    own = {
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "use_routing_bias": True,
        "shared_intermediate_size": 0,
    }
    return text_model_to_hf(config, "MiniMaxM2ForCausalLM", "minimax_m2", dtype, **own)
