"""Targets with grouped-query attention in every layer: Llama and MiniMax-M2.5."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from eagle3_jax.config import GroupedQueryConfig
from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.moe import MoE
from eagle3_jax.models.target import Target


class GroupedQueryTarget(Target):
    """Grouped-query attention, and experts or a dense MLP, as the configuration says."""

    config: GroupedQueryConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self, config: GroupedQueryConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32
    ):
        sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        hidden = config.hidden_size
        eps = config.rms_norm_eps if config.has_qk_norm else None

        def attention() -> GQAttention:
            return GQAttention(hidden, hidden, *sizes, qk_norm_eps=eps, rngs=rngs, dtype=dtype)

        def feed_forward(layer: int) -> MLP | MoE:
            if config.moe is None:
                return MLP(hidden, config.intermediate_size, rngs=rngs, dtype=dtype)
            return MoE(config.moe, rngs=rngs, dtype=dtype)

        super().__init__(config, attention, feed_forward, rngs=rngs, dtype=dtype)
