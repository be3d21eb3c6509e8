"""Llama as a target: grouped-query attention and a dense MLP in every layer."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from eagle3_jax.config import LlamaConfig
from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.models.target import Target


class LlamaTarget(Target):
    """Llama target, made of the layers that drafts and the other targets use."""

    config: LlamaConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        hidden = config.hidden_size

        def attention() -> GQAttention:
            return GQAttention(hidden, hidden, *sizes, rngs=rngs, dtype=dtype)

        def feed_forward(layer: int) -> MLP:
            return MLP(hidden, config.intermediate_size, rngs=rngs, dtype=dtype)

        super().__init__(config, attention, feed_forward, rngs=rngs, dtype=dtype)
