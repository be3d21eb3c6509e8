"""Matrix product with plain or quantised kernels: the product of a linear layer."""

from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.fp8_matmul import pallas
from pallas_kernels.fp8_matmul.operands import refusal
from pallas_kernels.grouped_matmul.dense import dense_matmul, dense_refusal, is_four_bit
from pallas_kernels.quantized import Kernel, QuantizedArray, QuantizedRows, Rows
from pallas_kernels.quantized.matmul import kernel_for
from pallas_kernels.quantized.matmul import matmul as contract
from pallas_kernels.streamed import rows_matmul


def matmul(
    x: Rows, kernel: Kernel, *, implementation: str | None = None
) -> Float[Array, "*rows outputs"]:
    """Compute x @ kernel in x's dtype, as `pallas_kernels.quantized.matmul` defines it.

    Plain kernels [in, out] use XLA's product, or `pallas_kernels.streamed` for few rows on a CPU.
    On a GPU, float8 kernels must be in the GPU's float8 (`pallas_kernels.quantized.for_gpu`), and
    four-bit kernels run on the experts' kernel. Raises ValueError on rows that are quantised for
    another format and on an implementation that cannot run.
    """
    if isinstance(x, QuantizedRows):
        kernel = kernel_for(x, kernel)
    if not isinstance(kernel, QuantizedArray):
        return contract(x, kernel) if implementation == "reference" else rows_matmul(x, kernel)
    if is_four_bit(kernel) and not isinstance(x, QuantizedRows):
        faster = dense_refusal(x, kernel) or dense_matmul
    else:
        faster = refusal(x, kernel) or pallas.matmul
    return choose("matmul", implementation, reference=contract, pallas=faster)(x, kernel)
