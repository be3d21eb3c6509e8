"""Kimi-K2.5 and its drafts, narrow enough to be compiled for eight CPU devices in seconds."""

from typing import Any

import jax.numpy as jnp
from published_pairs import LAYERS, published

from convert.from_config import draft_from_config, target_from_config
from eagle3_tools.plan.planner import AbstractPair

VOCAB, HIDDEN = 5120, 256
_SIZES = {
    **{"hidden_size": HIDDEN, "num_hidden_layers": 3, "vocab_size": VOCAB},
    **{"intermediate_size": 768, "moe_intermediate_size": 256, "n_routed_experts": 8},
    **{"num_experts_per_tok": 2, "num_attention_heads": 8, "num_key_value_heads": 8},
    **{"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16},
    **{"v_head_dim": 16, "head_dim": 32},
}


def small_pair(draft: str, draft_vocab: int) -> AbstractPair:
    """The published shapes with other sizes, and in bfloat16."""
    config = published("kimi-k2.5", "config")
    text = _narrow(config["text_config"])
    of_draft = _narrow(published(draft, "config")) | {
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab,
    }
    return AbstractPair(
        target_from_config({**config, "text_config": text}, jnp.bfloat16),
        draft_from_config(of_draft, jnp.bfloat16, num_target_layers=LAYERS),
    )


def _narrow(config: dict[str, Any]) -> dict[str, Any]:
    known = {name: size for name, size in _SIZES.items() if name in config}
    return {name: value for name, value in config.items() if name != "quantization_config"} | known
