"""The configuration of Llama, and of what is built as it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_jax.config.brief import brief
from eagle3_jax.config.published import read_ids, read_number, read_sizes, require_values
from eagle3_jax.config.rope import RopeConfig
from eagle3_jax.config.target import TargetConfig, text_fields


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(TargetConfig):
    """Grouped-query attention and a dense block in every layer."""

    intermediate_size: int
    num_key_value_heads: int
    head_dim: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "LlamaConfig":
        """Reads a Llama config.json.

        Raises ValueError for options that change the arithmetic and are not implemented.
        """
        text = text_fields(config)
        architectures = text.get("architectures")
        if architectures not in (["LlamaForCausalLM"], None) or "draft_vocab_size" in text:
            raise ValueError(
                f"unknown target architecture: architectures is {brief(architectures)}; a draft "
                "goes beside its target, not in its place"
            )
        require_values(text, _REQUIREMENTS)
        sizes = read_sizes(text, _SIZES)
        heads = sizes["num_attention_heads"]
        derived = {"num_key_value_heads": heads, "head_dim": sizes["hidden_size"] // heads}
        given = {name: text[name] for name in derived if text.get(name) is not None}
        sizes |= read_sizes(derived | given, derived)
        if heads % sizes["num_key_value_heads"] or sizes["head_dim"] % 2:
            raise ValueError("num_key_value_heads must divide the heads, head_dim must be even")
        return cls(
            **sizes,
            rms_norm_eps=read_number(text, "rms_norm_eps"),
            rope=RopeConfig.from_hf(text),
            eos_token_ids=read_ids({**text, **config}, "eos_token_id") or (),
        )

    @property
    def rope_dim(self) -> int:
        """How many dimensions of a head are rotated: all of them."""
        return self.head_dim

    @property
    def units(self) -> dict[str, int]:
        """How many parts that can't be divided each logical axis has."""
        own = {"kv_heads": self.num_key_value_heads, "mlp": self.intermediate_size}
        return {**super().units, **own}


_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "max_position_embeddings"),
)
_REQUIREMENTS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "tie_word_embeddings": (False,),
    "pretraining_tp": (1, None),
}
