"""Rows quantised before the timed product, as libraries take them."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from pallas_kernels import gpu
from pallas_kernels.case import Case
from pallas_kernels.quantized import QuantizedArray, QuantizedRows
from pallas_kernels.quantized.activations import fp8_per_token


def takes_given_rows(case: Case, shapes: tuple[Any, ...]) -> bool:
    """Return whether a case is a float8 product with a scale a row that quantises x itself."""
    if case.operation != "fp8_matmul" or not isinstance(shapes[1], QuantizedArray):
        return False
    return shapes[1].format.activations == "fp8_token"


def with_given_rows(x: Array, kernel: QuantizedArray) -> tuple[QuantizedRows, QuantizedArray]:
    """Return the product's arguments with x quantised to the GPU's float8."""
    values, scale = fp8_per_token(x)
    dtype = jnp.dtype(gpu.current().fp8)
    if dtype != jnp.float8_e4m3fn:  # e4m3fnuz has half the value under the same scale.
        values, scale = values / 2, scale * 2
    return QuantizedRows(values.astype(dtype), scale[..., 0], x.dtype), kernel
