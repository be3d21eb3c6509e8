"""Cases of `matmul` with float8 weights: decode and verify steps at the published shapes."""

from functools import partial

import jax
from jax import Array

from pallas_kernels.case import Case
from pallas_kernels.fp8_matmul import pallas
from pallas_kernels.quantized import QuantFormat, QuantizedArray
from pallas_kernels.quantized.examples import example_kernel, example_rows, matrix_instruction
from pallas_kernels.quantized.matmul import matmul as reference
from pallas_kernels.shapes import DECODE_ROWS, MATRICES, Matrix

PTPC = QuantFormat("fp8_channel", "fp8_token")
BLOCKS = QuantFormat("fp8_block", "fp8_group")
WIDENED = QuantFormat("fp8_channel")
SINGLE = ("q_b_proj", "o_proj", "down", "dense_down", "shared_down", "q_proj")
"""Matrices with an input of their own. The others are cases of `joint_matmul`."""


def cases() -> list[Case]:
    """Return cases of Kimi and drafts in PTPC, MiniMax in blocks, and weight-only drafts."""
    found = [
        (matrix, format, rows)
        for matrix in MATRICES
        if matrix.name.partition("@")[0].partition(".")[2] in SINGLE
        for format in (PTPC, BLOCKS, WIDENED)
        for rows in DECODE_ROWS
        if (format == BLOCKS) == matrix.name.startswith("minimax")
        and (format != WIDENED or matrix.name.startswith("draft_mha"))
    ]
    return [make_case(*arguments) for arguments in found]


def make_case(matrix: Matrix, format: QuantFormat, rows: int) -> Case:
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
    """Return the format's name at the start of a case's variant."""
    if format is None:
        return "bf16"
    return {PTPC: "ptpc", BLOCKS: "fp8_block", WIDENED: "fp8_weights"}[format]


def _example(
    matrix: Matrix, format: QuantFormat, rows: int, seed: int
) -> tuple[Array, Array | QuantizedArray]:
    keys = jax.random.split(jax.random.key(seed))
    return (
        example_rows(keys[0], rows, matrix.inputs),
        example_kernel(keys[1], matrix.inputs, matrix.outputs, format),
    )
