"""Matrix product with plain or quantised kernels: the product of a linear layer."""

from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.fp8_matmul.operands import as_rows, as_weight, refusal
from pallas_kernels.fp8_matmul.tiles import choose_tiles
from pallas_kernels.grouped_matmul.pallas import dense_matmul, dense_refusal, is_four_bit
from pallas_kernels.quantized import Kernel, QuantizedArray, QuantizedRows, Rows
from pallas_kernels.quantized.matmul import kernel_for
from pallas_kernels.quantized.matmul import matmul as contract
from pallas_kernels.streamed import rows_matmul
from pallas_kernels.tile_product import launch_tiles, multiply_tile


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
    return MATMUL(implementation, x, kernel)


def _refuse(x: Rows, kernel: QuantizedArray) -> str | None:
    if isinstance(x, QuantizedRows) or not is_four_bit(kernel):
        return refusal(x, kernel)
    return dense_refusal(x, kernel)


def _launch(x: Rows, kernel: QuantizedArray) -> Array:
    """Multiply by four-bit weights, or by float8 weights [out, in] with scales on the sums."""
    if not isinstance(x, QuantizedRows) and is_four_bit(kernel):
        return dense_matmul(x, kernel)
    rows, w = as_rows(x, kernel), as_weight(kernel)
    tiles = choose_tiles("fp8_matmul", rows, w)
    (out,) = launch_tiles(multiply_tile, "fp8_matmul", tiles, rows, [w], [w.outputs], x.dtype)
    return out.reshape(*x.shape[:-1], -1)


MATMUL = Operation("matmul", reference=contract, pallas=_launch, refuse=_refuse)
