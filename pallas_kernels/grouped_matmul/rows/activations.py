"""Rows as a format's kernels multiply them."""

from jaxtyping import Array, Float

from pallas_kernels.fp8_matmul.quantize import fp8_rows
from pallas_kernels.grouped_matmul.rows.quantize import int8_rows, mxfp4_rows
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.activations import fp8_per_token
from pallas_kernels.quantized.array import BLOCK
from pallas_kernels.row_kernel import RowKernel, run_rows
from pallas_kernels.tile_product import Operand


def activations(x: Float[Array, "rows inputs"], format: QuantFormat | None) -> Operand:
    """Values and scales; what has no matrix instruction of its own stays in x's dtype.

    Float8 and MXFP4 values are exact in bfloat16.
    """
    kernel = row_kernel(x, format)
    if kernel is not None:
        return Operand(*run_rows(kernel, x))
    if format is not None and format.activations == "fp8_token":
        values, scale = fp8_per_token(x)
        return Operand(values.astype(x.dtype), scale[:, 0])
    return Operand(x)


def row_kernel(x: Float[Array, "rows inputs"], format: QuantFormat | None) -> RowKernel | None:
    """What makes them, where a kernel does."""
    rows, inputs = x.shape
    if format is None or format.activations == "none":
        return None
    if format.activations == "int8_token":
        return int8_rows(rows, inputs)
    if format.activations == "mxfp4":
        return mxfp4_rows(rows, inputs, x.dtype)
    if format.weights == "int4_channel":
        return None
    # Zeros behind the last input: Pallas cannot mask loads of e4m3fnuz.
    width = inputs + -inputs % BLOCK
    return fp8_rows(rows, inputs, grouped=format.activations == "fp8_group", width=width)
