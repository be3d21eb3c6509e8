"""Small cases of dense products, with few and many rows.

They have three steps or two per part, partial column tiles, and a partial last bfloat16 step.
"""

from dataclasses import replace
from typing import Any

import jax

from eagle3_tools.amdgpu.cases.emulated import EmulatedCase
from eagle3_tools.amdgpu.cases.launches import named
from eagle3_tools.amdgpu.cases.tolerances import BF16
from eagle3_tools.kernel_cases import products
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_cases.quantized import example_kernel, example_rows, matrix_instruction
from eagle3_tools.kernel_cases.shapes import Head, Matrix
from pallas_kernels.dispatch import Operation
from pallas_kernels.joint_matmul import GATED_MATMUL, JOINT_MATMUL
from pallas_kernels.quantized import QuantFormat

PTPC, BLOCKS, WIDENED = products.PTPC, products.BLOCKS, products.WIDENED
FOUR_BIT = (
    QuantFormat("mxfp4", "mxfp4"),
    QuantFormat("mxfp4"),
    QuantFormat("int4_group"),
    QuantFormat("int4_channel", "int8_token"),
)


def product_cases() -> list[EmulatedCase]:
    """Return cases of every format with few rows, and of each kernel with the tiles of many."""
    return [*_single(), *_joint(), *_gated(), *_four_bit(), *_heads()]


def _single() -> list[EmulatedCase]:
    def product(
        like: str, inputs: int, outputs: int, format: QuantFormat, rows: int
    ) -> EmulatedCase:
        case = products.matmul_case(Matrix("small", inputs, outputs), format, rows)
        return EmulatedCase.small(case, named(f"fp8_matmul {like}"), BF16)

    return [
        product("kimi.q_b_proj@tp8 ptpc rows16", 1536, 72, PTPC, 5),
        product("kimi.q_b_proj@tp8 ptpc rows256", 1536, 136, PTPC, 130),
        product("minimax.q_proj@tp1 fp8_block rows64", 384, 200, BLOCKS, 50),
        product("minimax.q_proj@tp1 fp8_block rows256", 256, 200, BLOCKS, 130),
        product("draft_mha.o_proj@tp8 fp8_weights rows4", 3064, 72, WIDENED, 5),
    ]


def _joint() -> list[EmulatedCase]:
    """Return cases of two widths: the second matrix's tiles begin where the first's end."""

    def product(like: str, inputs: int, widths: tuple[int, ...], format: Any) -> EmulatedCase:
        matrices = [Matrix("small", inputs, width) for width in widths]
        case = products.joint_case(JOINT_MATMUL, matrices, format, 5)
        return EmulatedCase.small(case, named(f"joint_matmul {like}"), BF16)

    return [
        product("kimi.q_a_proj@tp1 bf16 rows4", 7160, (72, 40), None),
        product("draft_mha.qkv_proj@tp8 ptpc rows4", 14336, (40, 40, 40), PTPC),
        product("minimax.q_proj@tp8 fp8_block rows4", 384, (136, 40, 40), BLOCKS),
    ]


def _gated() -> list[EmulatedCase]:
    def product(like: str, inputs: int, format: Any, rows: int) -> EmulatedCase:
        matrices = [Matrix("small", inputs, 72)] * 2
        case = products.joint_case(GATED_MATMUL, matrices, format, rows)
        return EmulatedCase.small(case, named(f"gated_matmul {like}"), BF16)

    return [
        product("kimi.shared_gate_up@tp8 bf16 rows4", 3064, None, 5),
        product("kimi.shared_gate_up@tp8 bf16 rows256", 1016, None, 130),
        product("draft_mha.gate_up@tp8 ptpc rows4", 7168, PTPC, 5),
    ]


def _four_bit() -> list[EmulatedCase]:
    """Return cases of 4-bit products with Kimi's widths at TP8, which `all_cases` lacks."""
    return [
        EmulatedCase.small(
            _four_bit_case(operation, 768, 72, format, 5),
            _four_bit_case(operation, 7168, 2304, format, 4),
            BF16,
        )
        for operation, format in zip((GATED_MATMUL, JOINT_MATMUL) * 2, FOUR_BIT, strict=True)
    ]


def _four_bit_case(
    operation: Operation, inputs: int, outputs: int, format: QuantFormat, rows: int
) -> Case:
    """Make a case of two matrices; joint products are one launch each."""
    matrices = [Matrix("kimi.dense_gate_up@tp8", inputs, outputs)] * 2
    case = products.joint_case(operation, matrices, None, rows)

    def example(seed: int) -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(seed), 3)
        x = example_rows(keys[0], rows, inputs)
        return x, *(example_kernel(key, inputs, outputs, format) for key in keys[1:])

    return replace(
        case,
        variant=f"{format.weights}_{format.activations} rows{rows}",
        run=operation.pallas,
        example=example,
        kernels=("expert_gate_up" if operation is GATED_MATMUL else "expert_down",),
        matrix=matrix_instruction(format),
    )


def _heads() -> list[EmulatedCase]:
    """Return cases of heads: seven vocabulary tiles, the last not full; three for many rows."""

    def head(
        like: str, size: tuple[int, int], format: Any, rows: int, filtered: bool = False
    ) -> EmulatedCase:
        case = products.logits_argmax_case(Head("small", *size), format, rows, filtered)
        return EmulatedCase.small(
            case, named(f"logits_argmax kimi.lm_head@tp4 {like}"), BF16, _other_ids
        )

    return [
        head("bf16 rows4", (760, 404), None, 5),
        head("ptpc rows4", (1536, 404), PTPC, 5),
        head("bf16_min_p_bias rows4", (760, 404), None, 5, True),
        head("ptpc_min_p_bias rows4", (1536, 404), PTPC, 5, True),
        head("bf16 rows256", (192, 300), None, 130),
    ]


def _other_ids(x: Any, kernel: Any, options: Any, token_ids: Any) -> tuple[Any, ...]:
    """Use ids that differ from the column numbers, and make the first row greedy."""
    cold = options._replace(temperature=options.temperature.at[0].set(0))
    return x, kernel, cold, token_ids + 7
