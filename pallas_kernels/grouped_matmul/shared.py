"""The shared expert, which every token takes with weight 1."""

import jax
from jaxtyping import Array, Float

from pallas_kernels.quantized import QuantizedArray, matmul

Matrix = Array | QuantizedArray
"""[in, out] or a stack of such; plain or quantised."""
Shared = tuple[Matrix, Matrix, Matrix]
"""Gate, up and down of one expert."""


def swiglu(
    x: Float[Array, "tokens hidden"], gate: Matrix, up: Matrix, down: Matrix
) -> Float[Array, "tokens hidden"]:
    """down(silu(gate x) * up x)."""
    return matmul(jax.nn.silu(matmul(x, gate)) * matmul(x, up), down)
