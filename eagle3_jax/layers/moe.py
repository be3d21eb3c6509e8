"""Mixture of experts with DeepSeek-V3's sigmoid router (arXiv 2412.19437, section 2.1.2)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.collectives import all_sum, first_column
from eagle3_jax.config import MoEConfig
from eagle3_jax.layers.linear import normal_param
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.quantized import QuantizedKernel, kernel_format, kernel_split
from eagle3_jax.mesh import MeshAxes
from pallas_kernels import Held, QuantFormat, Routes, TileMap, grouped_mlp, route, router_logits
from pallas_kernels.grouped_matmul import Operand, looks_routed

Stack = nnx.Param | QuantizedKernel
"""One matrix an expert."""


class Router(nnx.Module):
    """Scores experts with a sigmoid; the correction bias decides the choice, never the weights."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        shape = (config.hidden_size, config.n_routed_experts)
        own_dtype = config.router_dtype or dtype
        self.kernel = normal_param(shape, ("embed", None), rngs, own_dtype)
        bias = jnp.zeros((config.n_routed_experts,), jnp.float32)
        self.e_score_correction_bias = nnx.Param(bias, axes=(None,))
        self.config = config

    def __call__(
        self, x: Float[Array, "tokens hidden"]
    ) -> tuple[Int[Array, "tokens chosen"], Float[Array, "tokens chosen"]]:
        """Returns the chosen experts (lower id first on ties) and their float32 weights.

        In plain JAX everywhere, so that gradients pass.
        """
        expert_ids, weights, *_ = self.route(x, implementation="xla")
        return expert_ids, weights

    def route(
        self,
        x: Float[Array, "tokens hidden"],
        format: QuantFormat | None = None,
        held: Held | None = None,
        implementation: str | None = None,
    ) -> Routes:
        """The same with what the kernels of experts in this format need, where a kernel made it."""
        return route(
            router_logits(x, self.kernel.get_value(), implementation=implementation),
            self.e_score_correction_bias.get_value(),
            top_k=self.config.num_experts_per_tok,
            normalise=self.config.norm_topk_prob,
            scaling=self.config.routed_scaling_factor,
            x=x,
            format=format,
            held=held,
            implementation=implementation,
        )


class Experts(nnx.Module):
    """The routed experts' SwiGLU matrices, stacked over experts."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
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
        tiles: TileMap | None = None,
        rows: Operand | None = None,
        shared: MLP | None = None,
    ) -> Float[Array, "tokens hidden"]:
        """The weighted sum of the chosen experts, plus `shared` of all tokens.

        expert_ids count from the first of this device. Of parts of the experts on a device, or of
        part of each: what it adds to the sum over all.
        """
        own = None if shared is None else _matrices(shared)
        arrays = (x, *_matrices(self), expert_ids, weights)
        return grouped_mlp(*arrays, shared=own, tiles=tiles, rows=rows)

    @property
    def split(self) -> MeshAxes | None:
        """The mesh axes over which what they add up is spread."""
        experts, *inner = kernel_split(self.gate_proj)
        axes = (experts or ()) + tuple(axis for axes in inner for axis in axes or ())
        return axes or None

    def held(self) -> Held | None:
        """Which of the experts this device has, if it has not all."""
        if (axes := kernel_split(self.gate_proj)[0]) is None:
            return None
        experts = _matrices(self)[0].shape[0]
        return Held(jnp.reshape(first_column(experts, axes), 1), experts)

    def has_one_like(self, mlp: MLP) -> bool:
        """Whether an MLP can run beside these, as one that every token chose."""
        return looks_routed(_matrices(mlp), _matrices(self))


def _matrices(module: Experts | MLP) -> tuple[Any, Any, Any]:
    """Gate, up and down."""
    if isinstance(module, Experts):
        parts = module.gate_proj, module.up_proj, module.down_proj
    else:
        parts = module.gate_proj.kernel, module.up_proj.kernel, module.down_proj.kernel
    gate, up, down = (part.get_value() for part in parts)
    return gate, up, down


class MoE(nnx.Module):
    """Weighted sum of the chosen experts plus the shared expert, where there is one."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.gate = Router(config, rngs=rngs, dtype=dtype)
        self.experts = Experts(config, rngs=rngs, dtype=dtype)
        shared = config.n_shared_experts * config.moe_intermediate_size
        self.shared_experts = (
            MLP(config.hidden_size, shared, rngs=rngs, dtype=dtype) if shared else None
        )

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """Devices that hold parts add up both sums at once."""
        tokens = x.reshape(-1, x.shape[-1])
        return all_sum(self._partial(tokens), self.experts.split).reshape(x.shape)

    def _partial(self, tokens: Float[Array, "tokens hidden"]) -> Float[Array, "tokens hidden"]:
        with jax.named_scope("moe_router"):
            format = kernel_format(self.experts.gate_proj)
            routes = self.gate.route(tokens, format, self.experts.held())
        shared = self.shared_experts
        if shared is not None and self.experts.has_one_like(shared):
            with jax.named_scope("moe_experts"):
                return self.experts(tokens, *routes, shared)
        with jax.named_scope("moe_routed_experts"):
            routed = self.experts(tokens, *routes)
        if shared is None:
            return routed
        with jax.named_scope("moe_shared_expert"):
            # Left to itself the GPU's library adds the routed sum to its product, and that sum is a
            # launch of its own then, not a part of the one that adds the residual.
            return routed + jax.lax.optimization_barrier(shared.partial(tokens))
