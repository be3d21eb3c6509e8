"""MiniMax-M2.5: grouped-query attention with normed queries and keys, experts in every layer."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from eagle3_jax.config import MiniMaxConfig
from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.moe import MoE
from eagle3_jax.models.target import Target


class MiniMaxTarget(Target):
    """MiniMax-M2.5's target. Queries and keys are normed before they are split into heads."""

    config: MiniMaxConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: MiniMaxConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        hidden, eps = config.hidden_size, config.rms_norm_eps

        def attention() -> GQAttention:
            return GQAttention(hidden, hidden, *sizes, qk_norm_eps=eps, rngs=rngs, dtype=dtype)

        def feed_forward(layer: int) -> MoE:
            return MoE(config.moe, rngs=rngs, dtype=dtype)

        super().__init__(config, attention, feed_forward, rngs=rngs, dtype=dtype)
