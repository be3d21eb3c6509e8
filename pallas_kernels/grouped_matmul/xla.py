"""The experts as XLA runs them well."""

import jax
import jax.numpy as jnp
from jax import lax
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
    top_k = expert_ids.shape[1]

    def add_pair(pair: Array, total: Array) -> Array:
        token, choice = pair // top_k, pair % top_k
        expert = expert_ids[token, choice]
        row = lax.dynamic_slice_in_dim(x, token, 1)
        inner = jax.nn.silu(row @ gate[expert]) * (row @ up[expert])
        out = expert_weights[token, choice] * (inner @ down[expert])
        return lax.dynamic_update_slice_in_dim(
            total, lax.dynamic_slice_in_dim(total, token, 1) + out, token, 0
        )

    total = lax.fori_loop(0, expert_ids.size, add_pair, jnp.zeros(x.shape, jnp.float32))
    return total.astype(x.dtype)
