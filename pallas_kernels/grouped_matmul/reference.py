"""A mixture of gated experts, written plainly: the contract every implementation meets."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def grouped_mlp(
    x: Float[Array, "tokens hidden"],
    gate: Float[Array, "experts hidden inter"],
    up: Float[Array, "experts hidden inter"],
    down: Float[Array, "experts inter hidden"],
    expert_ids: Int[Array, "tokens top_k"],
    expert_weights: Float[Array, "tokens top_k"],
) -> Float[Array, "tokens hidden"]:
    """See `pallas_kernels.grouped_matmul.api.grouped_mlp`."""
    total = jnp.zeros(x.shape, jnp.float32)
    for ids, weight in zip(expert_ids.T, expert_weights.T, strict=True):
        gated = jax.nn.silu(jnp.einsum("th,thi->ti", x, gate[ids]))
        inner = gated * jnp.einsum("th,thi->ti", x, up[ids])
        total += weight[:, None] * jnp.einsum("ti,tih->th", inner, down[ids])
    return total.astype(x.dtype)
