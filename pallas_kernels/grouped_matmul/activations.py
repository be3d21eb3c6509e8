"""Conversion of rows to the form that a format's kernels multiply, before or inside the product.

Inside the product, a row's largest magnitude needs a first pass, so rows are read twice. In the
experts' second product, rows are few compared with weights, and this saves a launch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.fp8_matmul.quantize import fp8_rows, to_fp8_runs
from pallas_kernels.grouped_matmul.quantize import int8_rows, largest_of, mxfp4_rows, to_int8
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.activations import fp8_per_token
from pallas_kernels.quantized.formats import BLOCK
from pallas_kernels.row_kernel import RowKernel, run_rows
from pallas_kernels.tile_product import Operand

Quantise = Callable[..., tuple[Array, Array]]
"""Quantises float32 [rows, depth] to values and scales; `largest` [rows] is of the whole rows."""


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


def in_passing(format: QuantFormat | None) -> Quantise | None:
    """Return the function that quantises rows for this format in the kernel, or None."""
    if format is None:
        return None
    if format.activations == "int8_token":
        return to_int8
    if format.activations == "fp8_token" and format.stored.bits == 8:
        return to_fp8_runs
    return None


def largest_of_rows(load_step: Callable[[Any], Array], steps: int, rows: int) -> Array:
    """Return the largest magnitude of each row over all steps."""

    def add(index: Array, largest: Array) -> Array:
        return jnp.maximum(largest, largest_of(load_step(index).astype(jnp.float32)))

    return jax.lax.fori_loop(0, steps, add, jnp.zeros(rows, jnp.float32))
