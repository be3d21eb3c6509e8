"""One matrix product for plain and for quantised kernels: what a linear layer calls."""

from typing import Any

from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.fp8_matmul import pallas
from pallas_kernels.fp8_matmul.operands import refusal
from pallas_kernels.quantized import Kernel, QuantizedArray
from pallas_kernels.quantized.matmul import matmul as contract


def matmul(
    x: Float[Array, "*rows inputs"], kernel: Kernel, *, implementation: str | None = None
) -> Float[Array, "*rows outputs"]:
    """x @ kernel in x's dtype, as `pallas_kernels.quantized.matmul` defines it.

    Plain kernels [in, out] are XLA's own product. For float8 kernels there is a GPU kernel, which
    wants them in the GPU's float8 (`pallas_kernels.quantized.for_gpu`). Raises ValueError on an
    implementation that cannot run.
    """
    if not isinstance(kernel, QuantizedArray):
        return x @ kernel
    implementations: dict[str, Any] = {
        "xla": contract,
        "reference": contract,
        "pallas": refusal(x, kernel) or pallas.matmul,
    }
    return choose("matmul", implementation, implementations)(x, kernel)
