"""The shared expert, which every token takes with weight 1."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from pallas_kernels.quantized import QuantizedArray, matmul
from pallas_kernels.quantized.array import BLOCK

Matrix = Array | QuantizedArray
"""[in, out] or a stack of such; plain or quantised."""


class GatedKernels(NamedTuple):
    """down(silu(gate x) * up x): gate and up [hidden, inter], down [inter, hidden], or stacks."""

    gate: Matrix
    up: Matrix
    down: Matrix


def can_join(shared: GatedKernels, experts: GatedKernels) -> bool:
    """Whether a launch over the routed experts can run the shared one too: hidden sizes are equal,
    and it has as many inner columns as one of them or, where devices cut it alone, whole blocks of
    less."""
    (hidden, own), (_, routed_hidden, inter) = shared.gate.shape, experts.gate.shape
    return hidden == routed_hidden and (own == inter or (own < inter and own % BLOCK == 0))


def swiglu(
    x: Float[Array, "tokens hidden"],
    kernels: GatedKernels,
    multiply: Callable[[Array, Matrix], Array] = matmul,
) -> Float[Array, "tokens hidden"]:
    """down(silu(gate x) * up x)."""
    inner = jax.nn.silu(multiply(x, kernels.gate)) * multiply(x, kernels.up)
    return multiply(inner, kernels.down)
