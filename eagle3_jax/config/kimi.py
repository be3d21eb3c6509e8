"""Configuration of Kimi-K2.5's text model, or of a bare DeepSeek-V3 model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_jax.config.fields import DECODER
from eagle3_jax.config.latent import LATENT_SIZES, LatentAttentionConfig, read_rank
from eagle3_jax.config.published import read_number, read_sizes, require_keys
from eagle3_jax.config.rope import RopeConfig
from eagle3_jax.config.target import MoEConfig, TargetConfig, read_shared_fields, text_fields
from eagle3_jax.config.vision import PLACEHOLDER, read_placeholder


@dataclass(frozen=True, kw_only=True)
class KimiConfig(TargetConfig):
    """The text model of Kimi-K2.5: DeepSeek-V3's MLA and sigmoid-routed experts."""

    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    first_k_dense_replace: int
    routed_scaling_factor: float
    norm_topk_prob: bool
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    latent_norm_eps: float = 1e-6
    """Epsilon of q_a_layernorm and kv_a_layernorm; transformers ignores config.json here."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "KimiConfig":
        """Read a full Kimi-K2.5 config.json or a bare DeepSeek-V3 one.

        Raises ValueError for options that are not implemented.
        """
        text = text_fields(config)
        require_keys(text, [n for n in cls.__dataclass_fields__ if n not in _DERIVED])
        fields = read_shared_fields(config, KIMI_FIELDS, _SIZES)
        fields |= read_sizes(text, _COUNTS, least=0)
        if config.get(PLACEHOLDER) is not None or config.get("vision_config"):
            placeholder, is_named = read_placeholder(config), config.get(PLACEHOLDER) is not None
            # A vocabulary that ends before the default id has no images.
            if is_named or placeholder < fields["vocab_size"]:
                fields[PLACEHOLDER] = placeholder
        if fields["num_experts_per_tok"] > fields["n_routed_experts"]:
            raise ValueError("num_experts_per_tok must not exceed n_routed_experts")
        return cls(
            **fields,
            rope=RopeConfig.from_hf(text),
            q_lora_rank=read_rank(text),
            routed_scaling_factor=read_number(text, "routed_scaling_factor"),
            norm_topk_prob=text["norm_topk_prob"],
        )

    @property
    def latent_attention(self) -> LatentAttentionConfig:
        return LatentAttentionConfig(
            **{name: getattr(self, name) for name in ("q_lora_rank", *LATENT_SIZES)},
            input_size=self.hidden_size,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            latent_norm_eps=self.latent_norm_eps,
            rope=self.rope,
        )

    @property
    def moe(self) -> MoEConfig:
        return MoEConfig(**{name: getattr(self, name) for name in MOE_FIELDS})

    @property
    def rope_dim(self) -> int:
        return self.qk_rope_head_dim

    @property
    def units(self) -> dict[str, int]:
        return {
            **super().units,
            "mlp": self.intermediate_size,
            "expert": self.n_routed_experts,
            "expert_mlp": self.moe_intermediate_size,
        }

    def is_dense(self, layer: int) -> bool:
        """Return whether this layer has one MLP instead of experts."""
        return layer < self.first_k_dense_replace


MOE_FIELDS = (
    *("hidden_size", "moe_intermediate_size", "n_routed_experts", "n_shared_experts"),
    *("num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor"),
)
_DERIVED = ("q_lora_rank", "rope", "eos_token_ids", "latent_norm_eps", PLACEHOLDER)
_COUNTS = ("n_shared_experts", "first_k_dense_replace")
_SIZES = (
    *("intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"),
    *LATENT_SIZES,
)
KIMI_FIELDS = DECODER.extended(
    read=(*_SIZES, *_COUNTS, "q_lora_rank", "routed_scaling_factor", PLACEHOLDER),
    only={
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "n_group": (1,),
        "topk_group": (1,),
        "moe_layer_freq": (1,),
        "norm_topk_prob": (True, False),
        "rope_interleave": (True,),
        "rope_is_neox_style": (False,),
    },
    ignored=(
        *("num_key_value_heads", "head_dim", "qk_head_dim"),  # follow from latent attention
        *("num_nextn_predict_layers", "moe_router_dtype"),
    ),
)
"""Fields of the text model. Multi-token prediction layers are not run; a draft replaces them."""
