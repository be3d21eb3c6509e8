"""What the configuration of every target says, whatever its architecture."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_jax.config.fields import Fields, require_full_attention
from eagle3_jax.config.moe import MoEConfig
from eagle3_jax.config.published import read_ids, read_mapping, read_number, read_sizes
from eagle3_jax.config.rope import RopeConfig


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """A decoder's sizes under their published names; the architectures add their own."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    eos_token_ids: tuple[int, ...] = ()
    media_placeholder_token_id: int | None = None
    """Positions with this id take features of images."""

    @property
    def rope_dim(self) -> int:
        """How many dimensions of a head are rotated."""
        raise NotImplementedError

    @property
    def moe(self) -> MoEConfig | None:
        """The experts of every layer that has some."""
        return None

    @property
    def units(self) -> dict[str, int]:
        """How many parts that can't be divided each logical axis of `eagle3_jax.mesh` has."""
        return {"heads": self.num_attention_heads, "vocab": self.vocab_size}


def text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the text model: the whole file, or what it nests in text_config."""
    return read_mapping(config, "text_config") or config


def read_shared_fields(
    config: Mapping[str, Any], known: Fields, sizes: Iterable[str]
) -> dict[str, Any]:
    """Reads what every TargetConfig has, and these sizes of its architecture.

    Raises ValueError for what is missing or no number, and for a value that `known` refuses.
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
