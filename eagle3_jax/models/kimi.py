"""Kimi-K2.5's text model (DeepSeek-V3 architecture): latent attention, sigmoid-routed experts."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from eagle3_jax.config import KimiConfig
from eagle3_jax.layers.mla import MLAttention
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.moe import MoE
from eagle3_jax.models.target import Target


class KimiTarget(Target):
    """Kimi-K2.5's target: a dense MLP in the first layers, then routed and shared experts."""

    config: KimiConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: KimiConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        def attention() -> MLAttention:
            return MLAttention(config.latent_attention, rngs=rngs, dtype=dtype)

        def feed_forward(layer: int) -> MLP | MoE:
            if config.is_dense(layer):
                return MLP(config.hidden_size, config.intermediate_size, rngs=rngs, dtype=dtype)
            return MoE(config.moe, rngs=rngs, dtype=dtype)

        super().__init__(config, attention, feed_forward, rngs=rngs, dtype=dtype)
