"""The shared expert, which every token takes with weight 1."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float

from pallas_kernels.quantized import QuantizedArray, matmul
from pallas_kernels.quantized.array import BLOCK

Matrix = Array | QuantizedArray
"""[in, out] or a stack of such; plain or quantised."""
Shared = tuple[Matrix, Matrix, Matrix]
"""Gate, up and down of one expert."""


def looks_routed(shared: tuple[Any, Any, Any], stacks: tuple[Any, Any, Any]) -> bool:
    """Whether a launch over the routed experts can run it beside: hidden sizes are equal, and it
    has as many inner columns as one of them or, where devices cut it alone, whole blocks of less.
    """
    inner, own = stacks[0].shape[2], shared[0].shape[1]
    return shared[0].shape[0] == stacks[0].shape[1] and (
        own == inner or (own < inner and own % BLOCK == 0)
    )


def swiglu(
    x: Float[Array, "tokens hidden"],
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    multiply: Callable[[Array, Matrix], Array] = matmul,
) -> Float[Array, "tokens hidden"]:
    """down(silu(gate x) * up x)."""
    return multiply(jax.nn.silu(multiply(x, gate)) * multiply(x, up), down)
