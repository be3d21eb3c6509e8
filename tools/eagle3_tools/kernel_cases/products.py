"""Cases of products with weights, and of the choice of a token: decode and verify steps."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eagle3_tools.kernel_cases.case import Case, forms
from eagle3_tools.kernel_cases.quantized import example_kernel, example_rows, matrix_instruction
from eagle3_tools.kernel_cases.shapes import DECODE_ROWS, HEADS, MATRICES, TP, Head, Matrix
from pallas_kernels.dispatch import Operation
from pallas_kernels.fp8_matmul import MATMUL
from pallas_kernels.joint_matmul import GATED_MATMUL, JOINT_MATMUL
from pallas_kernels.logits_argmax import LOGITS_ARGMAX, ArgmaxOptions
from pallas_kernels.partial_sums import total
from pallas_kernels.quantized import QuantFormat, QuantizedArray

PTPC = QuantFormat("fp8_channel", "fp8_token")
BLOCKS = QuantFormat("fp8_block", "fp8_group")
WIDENED = QuantFormat("fp8_channel")
SINGLE = ("q_b_proj", "o_proj", "down", "dense_down", "shared_down", "q_proj")
"""Matrices with an input of their own. The others are cases of `joint_matmul`."""
NAMED = {matrix.name: matrix for matrix in MATRICES}


def cases() -> list[Case]:
    """Return the cases of each device's matrices in the published formats."""
    return [*_matmul_cases(), *_joint_cases(), *_argmax_cases()]


def _matmul_cases() -> list[Case]:
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
    return [matmul_case(*arguments) for arguments in found]


def _joint_cases() -> list[Case]:
    """Return cases of target and drafts as published, and of drafts in PTPC."""
    return [
        joint_case(operation, [NAMED[name] for name in names], format, rows)
        for operation, found in ((JOINT_MATMUL, _joint()), (GATED_MATMUL, _gated()))
        for names, format in found
        for rows in DECODE_ROWS
    ]


def _argmax_cases() -> list[Case]:
    """Return cases of bfloat16 heads, Kimi's also in PTPC, and at TP4 with min-p and a bias."""
    return [
        logits_argmax_case(head, format, rows, filtered)
        for head in HEADS
        for format in (None, PTPC)
        for filtered in (False, True)
        for rows in DECODE_ROWS
        if (format is None or head.name.startswith("kimi"))
        and (not filtered or head.name == "kimi.lm_head@tp4")
    ]


def matmul_case(matrix: Matrix, format: QuantFormat, rows: int) -> Case:
    quantized = () if format == WIDENED else ("quantize_fp8",)
    return Case(
        operation="fp8_matmul",
        shape=matrix.name,
        variant=f"{format_name(format)} rows{rows}",
        run=MATMUL.pallas,
        reference=MATMUL.reference,
        example=partial(_matmul_example, matrix, format, rows),
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


def _matmul_example(
    matrix: Matrix, format: QuantFormat, rows: int, seed: int
) -> tuple[Array, Array | QuantizedArray]:
    keys = jax.random.split(jax.random.key(seed))
    return (
        example_rows(keys[0], rows, matrix.inputs),
        example_kernel(keys[1], matrix.inputs, matrix.outputs, format),
    )


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


def joint_case(
    operation: Operation, matrices: list[Matrix], format: QuantFormat | None, rows: int
) -> Case:
    """Build the case of a joint or gated product. Joint products are split-K except MiniMax's,
    whose heads are normed."""
    in_parts = operation is JOINT_MATMUL and format != BLOCKS
    inputs, outputs = matrices[0].inputs, sum(matrix.outputs for matrix in matrices)
    written = outputs if operation is JOINT_MATMUL else matrices[0].outputs
    return Case(
        operation=operation.name,
        shape=matrices[0].name,
        variant=f"{format_name(format)} rows{rows}",
        run=_summed if in_parts else operation.pallas,
        reference=operation.reference,
        example=partial(_joint_example, matrices, format, rows),
        kernels=(operation.name,) if format is None else ("quantize_fp8", operation.name),
        matrix=matrix_instruction(format),
        bytes_moved=inputs * outputs * (2 if format is None else 1) + 2 * rows * (inputs + written),
        flops=2 * rows * inputs * outputs,
        decode=rows <= 64,
    )


def _summed(x: Any, *kernels: Any) -> tuple[Any, ...]:
    """Run the joint product and add its partial sums, as the consumers do in a layer."""
    return tuple(map(total, JOINT_MATMUL.pallas(x, *kernels, in_parts=True)))


def _joint_example(
    matrices: list[Matrix], format: QuantFormat | None, rows: int, seed: int
) -> tuple[Any, ...]:
    first, *keys = jax.random.split(jax.random.key(seed), len(matrices) + 1)
    kernels = (
        example_kernel(key, matrix.inputs, matrix.outputs, format)
        for key, matrix in zip(keys, matrices, strict=True)
    )
    return (example_rows(first, rows, matrices[0].inputs), *kernels)


def logits_argmax_case(head: Head, format: QuantFormat | None, rows: int, filtered: bool) -> Case:
    kernels = ("logits_argmax", "logits_argmax_merge")
    return Case(
        **forms(LOGITS_ARGMAX, _logits_argmax),
        shape=head.name,
        variant=f"{format_name(format)}{'_min_p_bias' if filtered else ''} rows{rows}",
        example=partial(_argmax_example, head, format, rows, filtered),
        kernels=(
            *(() if format is None else ("quantize_fp8",)),
            *(("logits_argmax_again",) if filtered else ()),
            *kernels,
        ),
        matrix=matrix_instruction(format, rows),
        bytes_moved=head.hidden * head.vocab * (2 if format is None else 1)
        + 2 * rows * head.hidden,
        flops=2 * rows * head.hidden * head.vocab,
        decode=rows <= 64,
    )


def _logits_argmax(form: Any, *arrays: Any) -> Any:
    return form(*arrays, None)


def _argmax_example(
    head: Head, format: QuantFormat | None, rows: int, filtered: bool, seed: int
) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 5)
    options = ArgmaxOptions(
        temperature=jnp.where(jnp.arange(rows) % 2 == 0, 1.0, 0.6),
        seed=jax.random.bits(keys[2], (rows, 2), jnp.uint32),
        positions=jnp.arange(rows, dtype=jnp.int32) * 100,
    )
    if filtered:
        options = options._replace(
            min_p=jnp.full((rows,), 0.05, jnp.float32),
            bias_ids=jax.random.randint(keys[3], (rows, 8), 0, head.vocab),
            bias=jax.random.normal(keys[4], (rows, 8)),
        )
    return (
        example_rows(keys[0], rows, head.hidden),
        example_kernel(keys[1], head.hidden, head.vocab, format),
        options,
        jnp.arange(head.vocab, dtype=jnp.int32),
    )
