"""Small cases of routed experts: three steps, rows of several experts, one that nobody chose."""

from typing import Any

from eagle3_tools.amdgpu.cases.emulated import EmulatedCase
from eagle3_tools.amdgpu.cases.launches import named
from eagle3_tools.amdgpu.cases.tolerances import of_experts
from pallas_kernels.grouped_matmul import cases as grouped
from pallas_kernels.shapes import ExpertStack

STACK = ExpertStack("small", 5, 2, 384, 256)
BESIDE_SHARED = ExpertStack("small", 5, 2, 512, 256)
"""Whole steps, as a shared expert of other weights asks for."""
BF16, PTPC, INT4, W4A8, MXFP4 = grouped.KIMI
BLOCKS = grouped.MINIMAX[1]
TOKENS = 5


def expert_cases() -> list[EmulatedCase]:
    """Every format; MXFP4 in tiles with whole groups of columns and without; a shared expert."""
    kimi, minimax = "kimi.experts@tp8", "minimax.experts@tp8"
    asked = [
        (BF16, f"{kimi} bf16 tokens16"),
        (PTPC, f"{kimi} fp8_channel_fp8_token tokens16"),
        (INT4, f"{kimi} int4_group tokens16"),
        (W4A8, f"{kimi} int4_channel_int8_token tokens16"),
        (MXFP4, f"{kimi} mxfp4_mxfp4 tokens16"),
        (MXFP4, f"{kimi} mxfp4_mxfp4 tokens1"),
        (BLOCKS, f"{minimax} fp8_block_fp8_group tokens16"),
    ]
    routed = [
        EmulatedCase.small(
            grouped.make_case(STACK, format, TOKENS if "16" in like else 3),
            named(f"grouped_mlp {like}"),
            of_experts(format),
            _elsewhere,
            idle_rows=True,
        )
        for format, like in asked
    ]
    small = grouped.with_shared(BESIDE_SHARED, INT4, TOKENS)
    real = named(f"grouped_mlp {kimi} int4_group tokens16 shared")
    shared = EmulatedCase.small(small, real, of_experts(INT4), _elsewhere, idle_rows=True)
    return [*routed, shared]


def _elsewhere(x: Any, stacks: Any, ids: Any, weights: Any, *own: Any) -> tuple[Any, ...]:
    """One choice is an expert of another device, and nobody here chooses the second one."""
    ids = ids.at[0, 1].set(STACK.experts)
    # Of five experts a token has two: the one after is not the other.
    free = (ids.sum(axis=1, keepdims=True) - ids) != 2
    ids = ids + ((ids == 1) & free) - ((ids == 1) & ~free)
    return x, stacks, ids, weights, *own
