"""Reference implementation of `grouped_mlp` in plain JAX."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.grouped_matmul.shared import GatedKernels
from pallas_kernels.quantized import QuantizedArray, matmul


def grouped_mlp(
    x: Float[Array, "tokens hidden"],
    stacks: GatedKernels,
    expert_ids: Int[Array, "tokens top_k"],
    expert_weights: Float[Array, "tokens top_k"],
) -> Float[Array, "tokens hidden"]:
    """Reference implementation of `pallas_kernels.grouped_matmul.api.grouped_mlp`."""
    gate, up, down = stacks
    total = jnp.zeros(x.shape, jnp.float32)
    for ids, weight in zip(expert_ids.T, expert_weights.T, strict=True):
        held = (ids >= 0) & (ids < gate.shape[0])
        own = jnp.where(held, ids, 0)
        inner = jax.nn.silu(_row_times_own(x, gate[own])) * _row_times_own(x, up[own])
        chosen = weight[:, None] * _row_times_own(inner, down[own])
        total += jnp.where(held[:, None], chosen, 0)
    return total.astype(x.dtype)


def _row_times_own(
    x: Float[Array, "tokens inputs"],
    kernels: Float[Array, "tokens inputs outputs"] | QuantizedArray,
) -> Float[Array, "tokens outputs"]:
    """Multiply each row by the kernel chosen for it."""
    if isinstance(kernels, QuantizedArray):
        return jax.vmap(lambda row, kernel: matmul(row[None], kernel)[0])(x, kernels)
    return jnp.einsum("ti,tio->to", x, kernels)
