"""Configuration of Llama and of models with the same architecture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_jax.config.fields import DECODER
from eagle3_jax.config.published import brief, read_sizes
from eagle3_jax.config.rope import RopeConfig
from eagle3_jax.config.target import GroupedQueryConfig, read_shared_fields, text_fields


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(GroupedQueryConfig):
    """A decoder with grouped-query attention and a dense MLP in every layer."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "LlamaConfig":
        """Read a Llama config.json; raise ValueError for options that are not implemented."""
        text = text_fields(config)
        architectures = text.get("architectures")
        if architectures not in (["LlamaForCausalLM"], None) or "draft_vocab_size" in text:
            raise ValueError(
                f"unknown target architecture: architectures is {brief(architectures)}; a draft "
                "goes beside its target, not in its place"
            )
        fields = read_shared_fields(config, LLAMA_FIELDS, ["intermediate_size"])
        heads = fields["num_attention_heads"]
        derived = {"num_key_value_heads": heads, "head_dim": fields["hidden_size"] // heads}
        given = {name: text[name] for name in derived if text.get(name) is not None}
        fields |= read_sizes(derived | given, derived)
        if heads % fields["num_key_value_heads"] or fields["head_dim"] % 2:
            raise ValueError("num_key_value_heads must divide the heads, head_dim must be even")
        return cls(**fields, rope=RopeConfig.from_hf(text))


LLAMA_FIELDS = DECODER.extended(
    read=("intermediate_size", "num_key_value_heads", "head_dim"),
    only={
        "pretraining_tp": (1,),
        "rope_interleave": (False,),
        "rope_is_neox_style": (True,),
        "num_local_experts": (0,),
    },
)
