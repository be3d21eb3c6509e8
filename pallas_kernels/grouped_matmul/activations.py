"""Rows as a format's kernels multiply them."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.grouped_matmul.products import Operand
from pallas_kernels.grouped_matmul.quantize import int8_rows, mxfp4_rows
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.activations import fp8_per_token, mxfp4_round_trip
from pallas_kernels.quantized.array import BLOCK


def activations(x: Float[Array, "rows inputs"], format: QuantFormat | None) -> Operand:
    """Values and scales; what has no matrix instruction of its own stays in x's dtype.

    Float8 and MXFP4 values are exact in bfloat16.
    """
    if format is None or format.activations == "none":
        return Operand(x)
    if format.activations == "int8_token":
        return Operand(*int8_rows(x))
    if format.activations == "mxfp4":
        if gpu.current().scaled_dot:
            return Operand(*mxfp4_rows(x))
        return Operand(mxfp4_round_trip(x).astype(x.dtype))
    if format.weights == "int4_channel":
        values, scale = fp8_per_token(x)
        return Operand(values.astype(x.dtype), scale[:, 0])
    values, scale = quantize(x, grouped=format.activations == "fp8_group")
    # Zeros behind the last input: Pallas cannot mask loads of e4m3fnuz.
    return Operand(jnp.pad(values, ((0, 0), (0, -x.shape[1] % BLOCK))), scale)
