"""The shared expert, which every token takes with weight 1."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from pallas_kernels.quantized import QuantizedArray, matmul
from pallas_kernels.quantized.formats import BLOCK

Matrix = Array | QuantizedArray
"""Matrix [in, out] or a stack of them, plain or quantised."""


class GatedKernels(NamedTuple):
    """Kernels of a gated MLP: gate and up [hidden, inter], down [inter, hidden], or stacks."""

    gate: Matrix
    up: Matrix
    down: Matrix


def can_join(shared: GatedKernels, experts: GatedKernels) -> bool:
    """Return whether a launch over the routed experts can also run the shared one: hidden sizes are
    equal, and it has as many inner columns or, if only it is split over devices, fewer whole
    blocks."""
    (hidden, own), (_, routed_hidden, inter) = shared.gate.shape, experts.gate.shape
    return hidden == routed_hidden and (own == inter or (own < inter and own % BLOCK == 0))


def swiglu(
    x: Float[Array, "tokens hidden"],
    kernels: GatedKernels,
    multiply: Callable[[Array, Matrix], Array] = matmul,
) -> Float[Array, "tokens hidden"]:
    """Compute down(silu(gate x) * up x)."""
    inner = jax.nn.silu(multiply(x, kernels.gate)) * multiply(x, kernels.up)
    return multiply(inner, kernels.down)
