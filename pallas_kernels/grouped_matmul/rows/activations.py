"""Conversion of rows to the form that a format's kernels multiply."""

from jaxtyping import Array, Float

from pallas_kernels.fp8_matmul.quantize import fp8_rows
from pallas_kernels.grouped_matmul.rows.quantize import int8_rows, mxfp4_rows
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.activations import fp8_per_token
from pallas_kernels.quantized.formats import BLOCK
from pallas_kernels.row_kernel import RowKernel, run_rows
from pallas_kernels.tile_product import Operand


def activations(x: Float[Array, "rows inputs"], format: QuantFormat | None) -> Operand:
    """Return values and scales of rows for kernels of `format`.

    Formats without a matrix instruction keep x's dtype, in which float8 and MXFP4 values are exact.
    """
    kernel = row_kernel(x, format)
    if kernel is not None:
        return Operand(*run_rows(kernel, x))
    if format is not None and format.activations == "fp8_token":
        values, scale = fp8_per_token(x)
        return Operand(values.astype(x.dtype), scale[:, 0])
    return Operand(x)


def row_kernel(x: Float[Array, "rows inputs"], format: QuantFormat | None) -> RowKernel | None:
    """Return the kernel that quantises the rows, or None if no kernel does."""
    rows, inputs = x.shape
    if format is None or format.activations == "none":
        return None
    if format.activations == "int8_token":
        return int8_rows(rows, inputs)
    if format.activations == "mxfp4":
        return mxfp4_rows(rows, inputs, x.dtype)
    if format.stored.bits == 4:
        return None
    # Pad with zeros: Pallas cannot mask loads of e4m3fnuz.
    width = inputs + -inputs % BLOCK
    return fp8_rows(rows, inputs, grouped=format.activations == "fp8_group", width=width)
