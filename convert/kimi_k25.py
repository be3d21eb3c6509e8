"""The published tensors of Kimi-K2.5 (and of bare DeepSeek-V3 text models) as a table."""

import re
from dataclasses import dataclass

import numpy as np

from convert.rules import TRANSPOSED, Rule
from eagle3_jax.config import TargetConfig

_LAYER = "layers.{layer}."
_ATTENTION = _LAYER + "self_attn."
_MLP = _LAYER + "mlp."


@dataclass(frozen=True)
class LatentHeads:
    """`kv_b_proj`: per head, nope rows of W_UK then v rows of W_UV, over the latent."""

    heads: int
    nope: int

    def load(self, tensor: np.ndarray) -> tuple[np.ndarray, ...]:
        """[heads * (nope + v), latent] -> ([heads, latent, nope], [heads, latent, v])."""
        by_head = tensor.reshape(self.heads, -1, tensor.shape[-1]).swapaxes(1, 2)
        return by_head[..., : self.nope], by_head[..., self.nope :]

    def save(self, *parts: np.ndarray) -> np.ndarray:
        """The inverse of `load`."""
        by_head = np.concatenate(parts, axis=-1).swapaxes(1, 2)
        return by_head.reshape(-1, by_head.shape[-1])


def target_rules(config: TargetConfig) -> list[Rule]:
    """The table for one configuration; names are canonical, see `canonical_target_name`."""
    latent_heads = LatentHeads(config.num_attention_heads, config.qk_nope_head_dim)
    halves = tuple(_ATTENTION + f"kv_b_proj.{half}_kernel" for half in ("key", "value"))
    queries = ("q_proj",) if config.q_lora_rank is None else ("q_a_proj", "q_b_proj")
    projections = [
        *(_ATTENTION + name for name in (*queries, "kv_a_proj_with_mqa", "o_proj")),
        *(_MLP + name for name in ("gate_proj", "up_proj", "down_proj", "gate")),
        *(_MLP + "shared_experts." + name for name in ("gate_proj", "up_proj", "down_proj")),
        "lm_head",
    ]
    norms = [
        "norm",
        _LAYER + "input_layernorm",
        _LAYER + "post_attention_layernorm",
        *([] if config.q_lora_rank is None else [_ATTENTION + "q_a_layernorm"]),
        _ATTENTION + "kv_a_layernorm",
    ]
    bias = _MLP + "gate.e_score_correction_bias"
    return [
        Rule("embed_tokens.weight", ("embed_tokens.embedding",)),
        *(Rule(f"{name}.weight", (f"{name}.weight",)) for name in norms),
        *(Rule(f"{name}.weight", (f"{name}.kernel",), TRANSPOSED) for name in projections),
        Rule(_ATTENTION + "kv_b_proj.weight", halves, latent_heads),
        *(
            Rule(
                _MLP + f"experts.{{expert}}.{name}.weight",
                (_MLP + f"experts.{name}[{{expert}}]",),
                TRANSPOSED,
            )
            for name in ("gate_proj", "up_proj", "down_proj")
        ),
        Rule(bias, (bias,), saved="F32"),
        Rule(_ATTENTION + "rotary_emb.inv_freq", why="computed from the configuration"),
        Rule("vision_tower.{rest}", why="the vision tower is not part of the text model"),
        Rule("mm_projector.{rest}", why="the vision projector is not part of the text model"),
    ]


def canonical_target_name(name: str) -> str:
    """Strips the prefixes in use: language_model.model., model., language_model. (or none)."""
    return re.sub(r"^(language_model\.)?(model\.)?", "", name)


def published_target_name(name: str) -> str:
    """The released spelling of a canonical name."""
    inner = "" if name.startswith("lm_head.") else "model."
    return f"language_model.{inner}{name}"
