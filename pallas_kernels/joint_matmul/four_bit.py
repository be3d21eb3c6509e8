"""Joint and gated products with four-bit weights, run on the experts' kernels."""

from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.dense import dense_matmul
from pallas_kernels.quantized import QuantizedArray
from pallas_kernels.rms_norm import Norm, rms_norm


def joint_matmul(
    x: Float[Array, "*rows inputs"],
    *kernels: QuantizedArray,
    norm: Norm | None = None,
    in_parts: bool = False,
) -> tuple[Float[Array, "*rows _"], ...]:
    """Implement `joint_matmul.api.joint_matmul` with one launch for each kernel."""
    x = x if norm is None else rms_norm(x, norm)
    return tuple(dense_matmul(x, kernel) for kernel in kernels)


def gated_matmul(
    x: Float[Array, "*rows inputs"],
    gate: QuantizedArray,
    up: QuantizedArray,
    *,
    norm: Norm | None = None,
) -> Float[Array, "*rows outputs"]:
    """Implement `joint_matmul.api.gated_matmul` on the experts' kernels."""
    return dense_matmul(x if norm is None else rms_norm(x, norm), gate, up)
