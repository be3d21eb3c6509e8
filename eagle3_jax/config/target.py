"""Configuration fields that all targets share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_jax.config.fields import Fields, require_full_attention
from eagle3_jax.config.published import read_ids, read_mapping, read_number, read_sizes
from eagle3_jax.config.rope import RopeConfig


@dataclass(frozen=True)
class MoEConfig:
    """Sigmoid-routed experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).

    `router_dtype` is the dtype of the router's weight; None means the model's dtype.
    """

    hidden_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    router_dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Sizes of a decoder under their published names. Subclasses add those of an architecture."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    eos_token_ids: tuple[int, ...] = ()
    media_placeholder_token_id: int | None = None
    """Token id whose positions take image features."""

    @property
    def rope_dim(self) -> int:
        """Number of rotated dimensions per head."""
        raise NotImplementedError

    @property
    def moe(self) -> MoEConfig | None:
        """Expert configuration of the layers that have experts."""
        return None

    @property
    def units(self) -> dict[str, int]:
        """Number of indivisible units on each logical axis of `eagle3_jax.mesh`."""
        return {"heads": self.num_attention_heads, "vocab": self.vocab_size}


@dataclass(frozen=True, kw_only=True)
class GroupedQueryConfig(TargetConfig):
    """A decoder with grouped-query attention and, without `moe`, a dense MLP in every layer."""

    intermediate_size: int
    num_key_value_heads: int
    head_dim: int

    @property
    def rope_dim(self) -> int:
        return self.head_dim

    @property
    def has_qk_norm(self) -> bool:
        """Return whether queries and keys are normed before they are split into heads."""
        return False

    @property
    def units(self) -> dict[str, int]:
        if (moe := self.moe) is None:
            own = {"mlp": self.intermediate_size}
        else:
            own = {"expert": moe.n_routed_experts, "expert_mlp": moe.moe_intermediate_size}
        return {**super().units, "kv_heads": self.num_key_value_heads, **own}


def text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of the text model: the whole file or its `text_config`."""
    return read_mapping(config, "text_config") or config


def read_shared_fields(
    config: Mapping[str, Any], known: Fields, sizes: Iterable[str]
) -> dict[str, Any]:
    """Read the fields of every TargetConfig and the given sizes of an architecture.

    Raises ValueError if a field is missing or not a number, or if `known` refuses its value.
    """
    text = text_fields(config)
    known.require(text)
    require_full_attention(text)
    return {
        **read_sizes(text, (*_SIZES, *sizes)),
        "rms_norm_eps": read_number(text, "rms_norm_eps"),
        "eos_token_ids": read_ids({**text, **config}, "eos_token_id") or (),
    }


_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    "max_position_embeddings",
)
