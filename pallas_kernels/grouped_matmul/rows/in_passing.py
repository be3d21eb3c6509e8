"""Quantisation of rows inside the product kernel, with one scale for each row.

A row's largest magnitude needs a first pass, so rows are read twice. In the experts' second
product, rows are few compared with weights, and this saves a launch.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.fp8_matmul.quantize import to_fp8_runs
from pallas_kernels.grouped_matmul.rows.quantize import largest_of, to_int8
from pallas_kernels.quantized import QuantFormat

Quantise = Callable[..., tuple[Array, Array]]
"""Quantises float32 [rows, depth] to values and scales; `largest` [rows] is of the whole rows."""


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
