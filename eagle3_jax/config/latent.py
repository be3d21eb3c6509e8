"""Multi-head latent attention (MLA) of one layer of a target or a draft."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_jax.config.published import read_sizes
from eagle3_jax.config.rope import RopeConfig


@dataclass(frozen=True)
class LatentShape:
    """Widths of latent attention (DeepSeek-V2, arXiv 2405.04434) under their published names."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "LatentShape":
        """Read the widths; raise ValueError if one is missing or not a positive integer."""
        return cls(q_lora_rank=read_rank(config), **read_sizes(config, LATENT_SIZES))

    @property
    def qk_head_dim(self) -> int:
        """Query and key width of a head before absorption: nope + rope."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Width of one KV-cache row: the compressed latent and the shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True)
class LatentAttentionConfig(LatentShape):
    """Latent attention of one layer, from rows of `input_size` to rows of `hidden_size`."""

    input_size: int
    hidden_size: int
    num_attention_heads: int
    latent_norm_eps: float
    rope: RopeConfig

    @property
    def softmax_scale(self) -> float:
        """Attention scale; includes YaRN's squared magnitude if `mscale_all_dim` is set."""
        yarn = self.rope.yarn
        return self.qk_head_dim**-0.5 * (yarn.latent_score_scale if yarn else 1.0)


LATENT_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def read_rank(config: Mapping[str, Any]) -> int | None:
    """Read q_lora_rank; absent or null means full-rank queries."""
    if config.get("q_lora_rank") is None:
        return None
    return read_sizes(config, ["q_lora_rank"])["q_lora_rank"]
