"""Mixture of experts with DeepSeek-V3's sigmoid router (arXiv 2412.19437, section 2.1.2)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.collectives import all_rows, all_sum, first_column, num_devices, own_rows_sum
from eagle3_jax.config import MoEConfig
from eagle3_jax.layers.linear import normal_param
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.quantized import QuantizedKernel, kernel_split
from eagle3_jax.mesh import DATA, MeshAxes
from pallas_kernels import GatedKernels, RouterOptions, moe_mlp, route, router_logits

MOST_ROWS = 8192
"""Maximum rows, over all replicas, that the experts process at a time. Each expert of a row needs
memory for its intermediate result."""
Stack = nnx.Param | QuantizedKernel
"""One matrix per expert."""


class Router(nnx.Module):
    """Sigmoid router. The correction bias influences the choice of experts, never their weights."""

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
        """Return the chosen experts (lower id first on ties) and their float32 weights.

        Always uses plain JAX, so that gradients pass.
        """
        logits, bias = self.logits(x, "xla"), self.e_score_correction_bias.get_value()
        expert_ids, weights, *_ = route(logits, bias, self.options, implementation="xla")
        return expert_ids, weights

    def logits(
        self, x: Float[Array, "tokens hidden"], implementation: str | None = None
    ) -> Float[Array, "tokens experts"]:
        return router_logits(x, self.kernel.get_value(), implementation=implementation)

    @property
    def options(self) -> RouterOptions:
        config = self.config
        return RouterOptions(
            config.num_experts_per_tok, config.norm_topk_prob, config.routed_scaling_factor
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

    @property
    def kernels(self) -> GatedKernels:
        return GatedKernels(
            self.gate_proj.get_value(), self.up_proj.get_value(), self.down_proj.get_value()
        )

    @property
    def split(self) -> MeshAxes | None:
        """Mesh axes over which expert outputs are summed, among devices with the same rows."""
        split = kernel_split(self.gate_proj)
        axes = tuple(axis for axes in split for axis in axes or () if axis != DATA)
        return axes or None

    @property
    def replicas(self) -> MeshAxes | None:
        """Mesh axis of the replicas, if they hold other rows and other experts."""
        return (DATA,) if DATA in (kernel_split(self.gate_proj)[0] or ()) else None

    @property
    def first(self) -> Int[Array, ""] | int | None:
        """Index of this device's first expert, or None if it holds all experts."""
        if (axes := kernel_split(self.gate_proj)[0]) is None:
            return None
        return first_column(self.kernels.gate.shape[0], axes)


class MoE(nnx.Module):
    """Weighted sum of the chosen experts, plus the shared expert if there is one."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.gate = Router(config, rngs=rngs, dtype=dtype)
        self.experts = Experts(config, rngs=rngs, dtype=dtype)
        shared = config.n_shared_experts * config.moe_intermediate_size
        self.shared_experts = (
            MLP(config.hidden_size, shared, rngs=rngs, dtype=dtype) if shared else None
        )

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """Apply the block. Devices with parts of experts sum routed and shared outputs together.

        Replicas gather each other's rows, run their own experts on all rows and return the sums.
        The shared expert is replicated and processes only the replica's own rows.
        """
        tokens, shared = x.reshape(-1, x.shape[-1]), self.shared_experts
        replicas, split = self.experts.replicas, self.experts.split
        if replicas is None:
            kernels = None if shared is None else shared.kernels
            return all_sum(self._routed(tokens, kernels), split).reshape(x.shape)
        added = all_sum(self._with_replicas(tokens, replicas), split).reshape(x.shape)
        return added if shared is None else added + shared(x)

    def _with_replicas(
        self, tokens: Float[Array, "tokens hidden"], axis: MeshAxes
    ) -> Float[Array, "tokens hidden"]:
        """Sum the outputs of the experts of all replicas, MOST_ROWS at a time."""
        size = max(1, MOST_ROWS // num_devices(axis))
        pieces = (tokens[first : first + size] for first in range(0, len(tokens), size))
        added = (own_rows_sum(self._routed(all_rows(rows, axis)), axis) for rows in pieces)
        return jnp.concatenate(list(added))

    def _routed(
        self, tokens: Float[Array, "tokens hidden"], shared: GatedKernels | None = None
    ) -> Float[Array, "tokens hidden"]:
        """Sum this device's routed experts, fused with the shared expert if it is given."""
        with jax.named_scope("moe_router"):
            logits = self.gate.logits(tokens)
        return moe_mlp(
            tokens,
            logits,
            self.gate.e_score_correction_bias.get_value(),
            self.experts.kernels,
            self.gate.options,
            first=self.experts.first,
            shared=shared,
        )
