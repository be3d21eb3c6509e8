"""Reference implementation of `joint_matmul` and `gated_matmul`; it also runs on CPU."""

import jax
from jaxtyping import Array, Float

from pallas_kernels.fp8_matmul import matmul
from pallas_kernels.quantized import OneKernel
from pallas_kernels.rms_norm import Norm, rms_norm


def joint_matmul(
    x: Float[Array, "*rows inputs"],
    *kernels: OneKernel,
    norm: Norm | None = None,
    in_parts: bool = False,
) -> tuple[Float[Array, "*rows _"], ...]:
    """Reference implementation of `pallas_kernels.joint_matmul.api.joint_matmul`."""
    x = x if norm is None else rms_norm(x, norm)
    return tuple(matmul(x, kernel) for kernel in kernels)


def gated_matmul(
    x: Float[Array, "*rows inputs"], gate: OneKernel, up: OneKernel, *, norm: Norm | None = None
) -> Float[Array, "*rows outputs"]:
    """Reference implementation of `pallas_kernels.joint_matmul.api.gated_matmul`."""
    x = x if norm is None else rms_norm(x, norm)
    return jax.nn.silu(matmul(x, gate)) * matmul(x, up)
