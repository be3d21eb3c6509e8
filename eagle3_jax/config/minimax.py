"""Configuration of MiniMax-M2.5 (source: its published config.json)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_jax.config.fields import DECODER
from eagle3_jax.config.published import brief, read_sizes
from eagle3_jax.config.rope import RopeConfig
from eagle3_jax.config.target import (
    GroupedQueryConfig,
    MoEConfig,
    read_shared_fields,
    text_fields,
)

FULL_ATTENTION = 1
"""Full attention in attn_type_list; its other value is the linear attention of older models."""


@dataclass(frozen=True, kw_only=True)
class MiniMaxConfig(GroupedQueryConfig):
    """A decoder with normed grouped-query attention and sigmoid-routed experts in every layer.

    `intermediate_size` is that of one expert. MTP modules are not run; a draft replaces them.
    """

    rotary_dim: int
    num_local_experts: int
    num_experts_per_tok: int
    num_mtp_modules: int = 0
    mtp_transformer_layers: int = 0

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "MiniMaxConfig":
        """Read a MiniMax-M2 config.json; raise ValueError for options that are not implemented."""
        text = text_fields(config)
        _check_attention_types(text)
        fields = read_shared_fields(config, MINIMAX_FIELDS, _SIZES)
        if fields["num_experts_per_tok"] > fields["num_local_experts"]:
            raise ValueError("num_experts_per_tok must not exceed num_local_experts")
        if fields["num_attention_heads"] % fields["num_key_value_heads"]:
            raise ValueError("num_key_value_heads must divide num_attention_heads")
        if fields["rotary_dim"] % 2 or fields["rotary_dim"] > fields["head_dim"]:
            raise ValueError("rotary_dim must be even and at most head_dim")
        mtp = [name for name in MTP_SIZES if text.get(name) is not None]
        fields |= read_sizes(text, mtp, least=0)
        rotated = fields["rotary_dim"] / fields["head_dim"]
        return cls(**fields, rope=RopeConfig.from_hf(text, rotated=rotated))

    @property
    def rope_dim(self) -> int:
        """Number of rotated dimensions per head: the first ones."""
        return self.rotary_dim

    @property
    def has_qk_norm(self) -> bool:
        return True

    @property
    def moe(self) -> MoEConfig:
        """Expert configuration of every layer. The router is float32 in models of any dtype."""
        return MoEConfig(
            hidden_size=self.hidden_size,
            moe_intermediate_size=self.intermediate_size,
            n_routed_experts=self.num_local_experts,
            n_shared_experts=0,
            num_experts_per_tok=self.num_experts_per_tok,
            norm_topk_prob=True,
            routed_scaling_factor=1.0,
            router_dtype="float32",
        )

    @property
    def mtp_layers(self) -> range:
        """Indices of the multi-token prediction layers, which follow the decoder's layers."""
        count = self.num_mtp_modules * self.mtp_transformer_layers
        return range(self.num_hidden_layers, self.num_hidden_layers + count)


def _check_attention_types(text: Mapping[str, Any]) -> None:
    types = text.get("attn_type_list")
    if types is not None and (not isinstance(types, list) or set(types) - {FULL_ATTENTION}):
        raise ValueError(
            f"attn_type_list must be a list of {FULL_ATTENTION}, full attention; got {brief(types)}"
        )


MTP_SIZES = ("num_mtp_modules", "mtp_transformer_layers")
_SIZES = (
    *("intermediate_size", "num_key_value_heads", "head_dim", "rotary_dim"),
    *("num_local_experts", "num_experts_per_tok"),
)
MINIMAX_FIELDS = DECODER.extended(
    read=(*_SIZES, *MTP_SIZES, "attn_type_list"),
    only={
        "scoring_func": ("sigmoid",),
        "use_qk_norm": (True,),
        "qk_norm_type": ("per_layer",),
        "use_routing_bias": (True,),
        "shared_intermediate_size": (0,),
        "norm_topk_prob": (True,),
        "routed_scaling_factor": (1,),
        "num_expert_group": (1,),
        "topk_group": (1,),
        "rope_interleave": (False,),
        "rope_is_neox_style": (True,),
    },
    ignored=(
        *("use_mtp", "use_grouped_topk", "max_model_len", "shared_moe_mode"),
        # Left over in MiniMax-M2's file from an older model; its code does not read them.
        *("mlp_intermediate_size", "layernorm_full_attention_beta", "layernorm_mlp_beta"),
        "layernorm_linear_attention_beta",
    ),
)
