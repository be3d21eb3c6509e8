"""The published tensors of Llama as a table."""

import re
from dataclasses import asdict
from typing import Any

from convert.published_config import rope_to_hf
from convert.rules import Rule, norm_rule, projection_rule
from eagle3_jax.config import LlamaConfig

_LAYER = "layers.{layer}."


def llama_rules(config: LlamaConfig) -> list[Rule]:
    """The table, the same for all; names are without the prefix `model.`."""
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


def canonical_llama_name(name: str) -> str:
    """Strips the prefix `model.`."""
    return re.sub(r"^model\.", "", name)


def published_llama_name(name: str) -> str:
    """The released spelling of a canonical name."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def llama_to_hf(config: LlamaConfig, dtype: str) -> dict[str, Any]:
    """A Llama config.json; `dtype` is torch's name of it."""
    fields = asdict(config)
    eos = list(fields.pop("eos_token_ids"))
    del fields["rope"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **fields,
        **rope_to_hf(config.rope),
        **({"eos_token_id": eos[0] if len(eos) == 1 else eos} if eos else {}),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }
