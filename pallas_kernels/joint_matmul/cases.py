"""Cases of `joint_matmul` and `gated_matmul`: one x and several kernels at the published shapes."""

from functools import partial
from typing import Any

import jax

from pallas_kernels.case import Case
from pallas_kernels.fp8_matmul.cases import BLOCKS, PTPC, format_name
from pallas_kernels.joint_matmul import pallas, reference
from pallas_kernels.partial_sums import total
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.examples import example_kernel, example_rows, matrix_instruction
from pallas_kernels.shapes import DECODE_ROWS, MATRICES, TP, Matrix

NAMED = {matrix.name: matrix for matrix in MATRICES}


def cases() -> list[Case]:
    """Return cases of target and drafts as published, and of drafts in PTPC."""
    return [
        make_case(operation, [NAMED[name] for name in names], format, rows)
        for operation, found in (("joint_matmul", _joint()), ("gated_matmul", _gated()))
        for names, format in found
        for rows in DECODE_ROWS
    ]


def _joint() -> list[tuple[tuple[str, ...], QuantFormat | None]]:
    """List the matrices that multiply one x. q_a and kv_a are the same at every TP."""
    kimi = ("kimi.q_a_proj@tp1", "kimi.kv_a_proj@tp1")
    latent = ("draft_mla.q_a_proj@tp1", "draft_mla.kv_a_proj@tp1")
    heads = [(f"draft_mha.qkv_proj@tp{tp}",) * 3 for tp in TP]
    drafts = [(names, format) for names in (latent, *heads) for format in (None, PTPC)]
    minimax = [((f"minimax.q_proj@tp{tp}", *(f"minimax.kv_proj@tp{tp}",) * 2), BLOCKS) for tp in TP]
    return [(kimi, None), *drafts, *minimax]


def _gated() -> list[tuple[tuple[str, ...], QuantFormat | None]]:
    kimi = [(name, None) for name in ("kimi.dense_gate_up", "kimi.shared_gate_up")]
    drafts = [
        (name, format)
        for name in ("draft_mha.gate_up", "draft_mla.gate_up")
        for format in (None, PTPC)
    ]
    return [((f"{name}@tp{tp}",) * 2, format) for tp in TP for name, format in (*kimi, *drafts)]


def make_case(
    operation: str, matrices: list[Matrix], format: QuantFormat | None, rows: int
) -> Case:
    """Build the case of a joint or gated product. Joint products are split-K except MiniMax's,
    whose heads are normed."""
    in_parts = operation == "joint_matmul" and format != BLOCKS
    inputs, outputs = matrices[0].inputs, sum(matrix.outputs for matrix in matrices)
    written = outputs if operation == "joint_matmul" else matrices[0].outputs
    return Case(
        operation=operation,
        shape=matrices[0].name,
        variant=f"{format_name(format)} rows{rows}",
        run=_summed if in_parts else getattr(pallas, operation),
        reference=getattr(reference, operation),
        example=partial(_example, matrices, format, rows),
        kernels=(operation,) if format is None else ("quantize_fp8", operation),
        matrix=matrix_instruction(format),
        bytes_moved=inputs * outputs * (2 if format is None else 1) + 2 * rows * (inputs + written),
        flops=2 * rows * inputs * outputs,
        decode=rows <= 64,
    )


def _summed(x: Any, *kernels: Any) -> tuple[Any, ...]:
    """Run the joint product and add its partial sums, as the consumers do in a layer."""
    return tuple(map(total, pallas.joint_matmul(x, *kernels, in_parts=True)))


def _example(
    matrices: list[Matrix], format: QuantFormat | None, rows: int, seed: int
) -> tuple[Any, ...]:
    first, *keys = jax.random.split(jax.random.key(seed), len(matrices) + 1)
    kernels = (
        example_kernel(key, matrix.inputs, matrix.outputs, format)
        for key, matrix in zip(keys, matrices, strict=True)
    )
    return (example_rows(first, rows, matrices[0].inputs), *kernels)
