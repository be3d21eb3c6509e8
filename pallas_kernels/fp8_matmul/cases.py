"""Float8 products of decode and verify steps at the published shapes."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels import gpu
from pallas_kernels.case import Case
from pallas_kernels.fp8_matmul import pallas
from pallas_kernels.quantized import QuantFormat, QuantizedArray
from pallas_kernels.quantized.matmul import matmul as reference
from pallas_kernels.shapes import DECODE_ROWS, MATRICES, Matrix

PTPC = QuantFormat("fp8_channel", "fp8_token")
BLOCKS = QuantFormat("fp8_block", "fp8_group")
WIDENED = QuantFormat("fp8_channel")
SINGLE = ("q_b_proj", "o_proj", "down", "dense_down", "shared_down", "q_proj")
"""What multiplies an x of its own; the others are cases of joint_matmul."""


def cases() -> list[Case]:
    """PTPC for Kimi and the drafts, blocks for MiniMax, and the drafts' weights alone."""
    found = [
        (matrix, format, rows)
        for matrix in MATRICES
        if matrix.name.partition("@")[0].partition(".")[2] in SINGLE
        for format in (PTPC, BLOCKS, WIDENED)
        for rows in DECODE_ROWS
        if (format == BLOCKS) == matrix.name.startswith("minimax")
        and (format != WIDENED or matrix.name.startswith("draft_mha"))
    ]
    return [_case(*arguments) for arguments in found]


def _case(matrix: Matrix, format: QuantFormat, rows: int) -> Case:
    quantized = () if format == WIDENED else ("quantize_fp8",)
    return Case(
        operation="fp8_matmul",
        shape=matrix.name,
        variant=f"{format_name(format)} rows{rows}",
        run=pallas.matmul,
        reference=reference,
        example=partial(_example, matrix, format, rows),
        kernels=(*quantized, "fp8_matmul"),
        matrix=matrix_instruction(format),
        bytes_moved=matrix.inputs * matrix.outputs + 2 * rows * (matrix.inputs + matrix.outputs),
        flops=2 * rows * matrix.inputs * matrix.outputs,
        decode=rows <= 64,
    )


def format_name(format: QuantFormat | None) -> str:
    """As a variant begins."""
    if format is None:
        return "bf16"
    return {PTPC: "ptpc", BLOCKS: "fp8_block", WIDENED: "fp8_weights"}[format]


def matrix_instruction(format: QuantFormat | None) -> dict[str, str]:
    """What must do the work on each GPU."""
    if format is None or format == WIDENED:
        return dict.fromkeys(("gfx950", "gfx942"), "bf16")
    return {"gfx950": "f8f6f4", "gfx942": "fp8"}


def example_rows(key: Array, rows: int, inputs: int) -> Array:
    """bfloat16 activations, N(0, 1)."""
    return jax.random.normal(key, (rows, inputs), jnp.bfloat16)


def example_kernel(
    key: Array, inputs: int, outputs: int, format: QuantFormat | None
) -> Array | QuantizedArray:
    """Random weights with a standard deviation of inputs^-0.5, in the current GPU's float8."""
    deviation = inputs**-0.5
    if format is None:
        return deviation * jax.random.normal(key, (inputs, outputs), jnp.bfloat16)
    dtype = jnp.float8_e4m3fn if format.activations == "none" else gpu.current().fp8
    values = jax.random.normal(key, (outputs, inputs), jnp.bfloat16).astype(dtype)
    scale = jnp.full(format.scale_shape(outputs, inputs), deviation, jnp.float32)
    return QuantizedArray(values, scale, format)


def _example(
    matrix: Matrix, format: QuantFormat, rows: int, seed: int
) -> tuple[Array, Array | QuantizedArray]:
    keys = jax.random.split(jax.random.key(seed))
    return (
        example_rows(keys[0], rows, matrix.inputs),
        example_kernel(keys[1], matrix.inputs, matrix.outputs, format),
    )
