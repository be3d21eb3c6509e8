"""Rows that a program quantises itself, each with one scale, before it multiplies them.

The largest of a row is known after it was read once, so it is read twice. A program of the experts'
second product reads a few rows and many times their weights, and a launch is saved.
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
"""float32 [rows, depth] and `largest` [rows] of the whole rows, to values and scales."""


def in_passing(format: QuantFormat | None) -> Quantise | None:
    """What quantises rows for weights in this format, where the kernel can."""
    if format is None:
        return None
    if format.activations == "int8_token":
        return to_int8
    if (format.weights, format.activations) == ("fp8_channel", "fp8_token"):
        return to_fp8_runs
    return None


def largest_of_rows(load_step: Callable[[Any], Array], steps: int, rows: int) -> Array:
    """Over all steps of the rows."""

    def add(index: Array, largest: Array) -> Array:
        return jnp.maximum(largest, largest_of(load_step(index).astype(jnp.float32)))

    return jax.lax.fori_loop(0, steps, add, jnp.zeros(rows, jnp.float32))
