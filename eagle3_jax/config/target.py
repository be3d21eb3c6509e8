"""The target's configuration: Kimi-K2.5's text model, or a bare DeepSeek-V3 one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_jax.config.brief import brief
from eagle3_jax.config.latent import LATENT_SIZES, LatentAttentionConfig, read_rank
from eagle3_jax.config.published import (
    read_ids,
    read_mapping,
    read_number,
    read_sizes,
    require_keys,
    require_values,
)
from eagle3_jax.config.rope import RopeConfig

TARGET_MODEL_TYPES = ("kimi_k2", "deepseek_v3")


@dataclass(frozen=True)
class TargetConfig:
    """The text model of Kimi-K2.5: DeepSeek-V3's MLA and sigmoid-routed experts."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
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
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    eos_token_ids: tuple[int, ...] = ()
    latent_norm_eps: float = 1e-6
    """Epsilon of q_a_layernorm and kv_a_layernorm: transformers ignores the config here."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "TargetConfig":
        """Reads a whole Kimi-K2.5 config.json or a bare DeepSeek-V3 one.

        Raises ValueError for another architecture and for options that change the arithmetic.
        """
        text = read_mapping(config, "text_config") or config
        if text.get("model_type") not in TARGET_MODEL_TYPES:
            raise ValueError(
                f"unknown target architecture: model_type must be one of {TARGET_MODEL_TYPES} "
                f"(Kimi-K2.5 nests it in text_config), got {brief(text.get('model_type'))}"
            )
        require_values(text, _REQUIREMENTS)
        require_keys(text, [n for n in cls.__dataclass_fields__ if n not in _DERIVED])
        sizes = read_sizes(text, _SIZES) | read_sizes(text, _COUNTS, least=0)
        if sizes["num_experts_per_tok"] > sizes["n_routed_experts"]:
            raise ValueError("num_experts_per_tok must not exceed n_routed_experts")
        return cls(
            **sizes,
            q_lora_rank=read_rank(text),
            routed_scaling_factor=read_number(text, "routed_scaling_factor"),
            norm_topk_prob=text["norm_topk_prob"],
            rms_norm_eps=read_number(text, "rms_norm_eps"),
            rope=RopeConfig.from_hf(text),
            eos_token_ids=read_ids({**text, **config}, "eos_token_id") or (),
        )

    @property
    def latent_attention(self) -> LatentAttentionConfig:
        """The attention of every layer."""
        return LatentAttentionConfig(
            q_lora_rank=self.q_lora_rank,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            input_size=self.hidden_size,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            latent_norm_eps=self.latent_norm_eps,
            rope=self.rope,
        )

    @property
    def qk_head_dim(self) -> int:
        """Query and key width of a head before absorption: nope + rope."""
        return self.latent_attention.qk_head_dim

    @property
    def latent_dim(self) -> int:
        """Width of one KV-cache row: the compressed latent and the shared rotary key."""
        return self.latent_attention.latent_dim

    @property
    def softmax_scale(self) -> float:
        """Attention scale, with YaRN's magnitude squared when `mscale_all_dim` is set."""
        return self.latent_attention.softmax_scale

    def is_dense(self, layer: int) -> bool:
        """Whether this layer has one MLP instead of experts."""
        return layer < self.first_k_dense_replace


_DERIVED = ("q_lora_rank", "rope", "eos_token_ids", "latent_norm_eps")
_COUNTS = ("n_shared_experts", "first_k_dense_replace")
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size"),
    *("num_hidden_layers", "num_attention_heads", "n_routed_experts", "num_experts_per_tok"),
    *LATENT_SIZES,
    "max_position_embeddings",
)
_REQUIREMENTS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "n_group": (1, None),
    "topk_group": (1, None),
    "moe_layer_freq": (1,),
    "norm_topk_prob": (True, False),
    "tie_word_embeddings": (False,),
    "rope_interleave": (True,),
}
