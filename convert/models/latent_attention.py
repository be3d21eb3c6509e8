"""Table of the published tensors of latent attention, used by the target and some drafts."""

from dataclasses import dataclass

import numpy as np

from convert.files.box import Box, scaled
from convert.models.rules import Layout, Rule, WhenQuantized, norm_rule, projection_rule
from eagle3_jax.config import KimiConfig, LatentShape


@dataclass(frozen=True, kw_only=True)
class LatentHeads(Layout):
    """Layout of `kv_b_proj`: per head, nope rows of W_UK, then v rows of W_UV, over the latent.

    Always floats: absorption multiplies along its outputs, where a quantised matrix has its scales.
    """

    nope: int
    value: int
    quantized: WhenQuantized = "dequantize"
    row_axis: int | None = None

    def load(self, tensor: np.ndarray) -> tuple[np.ndarray, ...]:
        """Split [heads * (nope + v), latent] into ([heads, latent, nope], [heads, latent, v])."""
        rows = self.nope + self.value
        by_head = tensor.reshape(-1, rows, tensor.shape[-1]).swapaxes(1, 2)
        return by_head[..., : self.nope], by_head[..., self.nope :]

    def save(self, *parts: np.ndarray) -> np.ndarray:
        """Invert `load`."""
        by_head = np.concatenate(parts, axis=-1).swapaxes(1, 2)
        return by_head.reshape(-1, by_head.shape[-1])

    def tensor_shape(self, *parts: tuple[int, ...]) -> tuple[int, ...]:
        (heads, latent, nope), (_, _, value) = parts
        return (heads * (nope + value), latent)

    def tensor_box(self, box: Box) -> Box:
        """Return a box of whole rows, because a head's keys and values are adjacent."""
        heads, latent, _ = box
        return (scaled(heads, self.nope + self.value), latent)


def latent_attention_rules(prefix: str, config: KimiConfig | LatentShape) -> list[Rule]:
    """Return the table of the module at `prefix`, such as `layers.{layer}.self_attn.`."""
    low_rank_queries = config.q_lora_rank is not None
    heads = LatentHeads(nope=config.qk_nope_head_dim, value=config.v_head_dim)
    queries = ("q_a_proj", "q_b_proj") if low_rank_queries else ("q_proj",)
    norms = ("q_a_layernorm", "kv_a_layernorm") if low_rank_queries else ("kv_a_layernorm",)
    halves = tuple(prefix + f"kv_b_proj.{half}_kernel" for half in ("key", "value"))
    return [
        *(projection_rule(prefix + name) for name in (*queries, "kv_a_proj_with_mqa", "o_proj")),
        *(norm_rule(prefix + name) for name in norms),
        Rule(prefix + "kv_b_proj.weight", halves, heads),
        Rule(prefix + "rotary_emb.inv_freq", why="computed from the configuration"),
    ]
