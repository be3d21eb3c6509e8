"""Dense products with four-bit weights, run as a shared expert that every token takes."""

from typing import TypeGuard

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.kernel import multiply
from pallas_kernels.grouped_matmul.pallas import refusal
from pallas_kernels.grouped_matmul.program import ExpertBatch, RoutedAndShared
from pallas_kernels.grouped_matmul.rows.activations import activations
from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.quantized import QuantizedArray


def is_four_bit(kernel: Array | QuantizedArray) -> TypeGuard[QuantizedArray]:
    """Return whether a kernel has four bits, so that the experts' kernels multiply it."""
    return isinstance(kernel, QuantizedArray) and kernel.format.stored.bits == 4


def dense_refusal(x: Array, *kernels: QuantizedArray) -> str | None:
    """Return why one or two kernels cannot be multiplied here, or None if they can."""
    return refusal(x, kernels[0], kernels[-1], kernels[0])


def dense_matmul(
    x: Float[Array, "*rows inputs"], *kernels: QuantizedArray
) -> Float[Array, "*rows outputs"]:
    """Compute x @ kernel as `pallas_kernels.quantized.matmul` does, or, for gate and up kernels,
    silu(x @ gate) * (x @ up)."""
    flat = x.reshape(-1, x.shape[-1])
    nothing = jnp.zeros(1, jnp.int32)
    batch = ExpertBatch(len(flat), 0, row_tile(len(flat), 1, 1), shared=True)
    stacks = [kernel[None] for kernel in kernels]
    rows = activations(flat, kernels[0].format)
    both = RoutedAndShared(rows, rows)
    out = multiply(batch, TileMap(*[nothing] * 5), both, stacks, kernels, x.dtype)
    return out.shared.values.reshape(*x.shape[:-1], -1)
