"""Mixture of experts with DeepSeek-V3's sigmoid router (arXiv 2412.19437, section 2.1.2)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.config import TargetConfig
from eagle3_jax.layers.linear import normal_param
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.quantized import QuantizedKernel
from pallas_kernels import grouped_mlp

Stack = nnx.Param | QuantizedKernel
"""One matrix an expert."""


class Router(nnx.Module):
    """Scores experts with a sigmoid; the correction bias decides the choice, never the weights."""

    def __init__(self, config: TargetConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        shape = (config.hidden_size, config.n_routed_experts)
        self.kernel = normal_param(shape, ("embed", None), rngs, dtype)
        bias = jnp.zeros((config.n_routed_experts,), jnp.float32)
        self.e_score_correction_bias = nnx.Param(bias, axes=(None,))
        self.config = config

    def __call__(
        self, x: Float[Array, "tokens hidden"]
    ) -> tuple[Int[Array, "tokens chosen"], Float[Array, "tokens chosen"]]:
        """Returns the chosen experts (lower id first on ties) and their float32 weights."""
        logits = x.astype(jnp.float32) @ self.kernel.get_value().astype(jnp.float32)
        scores = jax.nn.sigmoid(logits)
        biased = scores + self.e_score_correction_bias.get_value()
        _, expert_ids = jax.lax.top_k(biased, self.config.num_experts_per_tok)
        weights = jnp.take_along_axis(scores, expert_ids, axis=-1)
        if self.config.norm_topk_prob:
            weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
        return expert_ids, weights * self.config.routed_scaling_factor


class Experts(nnx.Module):
    """The routed experts' SwiGLU matrices, stacked over experts."""

    def __init__(self, config: TargetConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        experts, hidden = config.n_routed_experts, config.hidden_size
        wide = (experts, hidden, config.moe_intermediate_size)
        narrow = (experts, config.moe_intermediate_size, hidden)
        self.gate_proj: Stack = normal_param(wide, ("expert", "embed", "expert_mlp"), rngs, dtype)
        self.up_proj: Stack = normal_param(wide, ("expert", "embed", "expert_mlp"), rngs, dtype)
        self.down_proj: Stack = normal_param(narrow, ("expert", "expert_mlp", "embed"), rngs, dtype)

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        expert_ids: Int[Array, "tokens chosen"],
        weights: Float[Array, "tokens chosen"],
    ) -> Float[Array, "tokens hidden"]:
        gate, up = self.gate_proj.get_value(), self.up_proj.get_value()
        return grouped_mlp(x, gate, up, self.down_proj.get_value(), expert_ids, weights)


class MoE(nnx.Module):
    """Weighted sum of the chosen experts plus the shared expert."""

    def __init__(self, config: TargetConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.gate = Router(config, rngs=rngs, dtype=dtype)
        self.experts = Experts(config, rngs=rngs, dtype=dtype)
        shared = config.n_shared_experts * config.moe_intermediate_size
        self.shared_experts = MLP(config.hidden_size, shared, rngs=rngs, dtype=dtype)

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        tokens = x.reshape(-1, x.shape[-1])
        with jax.named_scope("moe_router"):
            expert_ids, weights = self.gate(tokens)
        with jax.named_scope("moe_routed_experts"):
            routed = self.experts(tokens, expert_ids, weights)
        with jax.named_scope("moe_shared_expert"):
            return routed.reshape(x.shape) + self.shared_experts(x)
