"""Small cases of routed experts: three steps, experts with several rows and with none."""

from typing import Any

from eagle3_tools.amdgpu.cases.emulated import EmulatedCase
from eagle3_tools.amdgpu.cases.launches import named
from eagle3_tools.amdgpu.cases.tolerances import of_experts
from eagle3_tools.kernel_cases import experts
from eagle3_tools.kernel_cases.shapes import ExpertStack

STACK = ExpertStack("small", 5, 2, 384, 256)
BESIDE_SHARED = ExpertStack("small", 5, 2, 512, 256)
"""Whole steps, as a shared expert with its own weights requires."""
BF16, PTPC, INT4, W4A8, MXFP4 = experts.KIMI
BLOCKS = experts.MINIMAX[1]
TOKENS = 5


def expert_cases() -> list[EmulatedCase]:
    """Return cases of every format, of MXFP4 with and without whole column groups, and shared."""
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
            experts.grouped_mlp_case(STACK, format, TOKENS if "16" in like else 3),
            named(f"grouped_mlp {like}"),
            of_experts(format),
            _elsewhere,
            idle_rows=True,
        )
        for format, like in asked
    ]
    small = experts.with_shared(BESIDE_SHARED, INT4, TOKENS)
    real = named(f"grouped_mlp {kimi} int4_group tokens16 shared")
    shared = EmulatedCase.small(small, real, of_experts(INT4), _elsewhere, idle_rows=True)
    return [*routed, shared]


def _elsewhere(x: Any, stacks: Any, ids: Any, weights: Any, *own: Any) -> tuple[Any, ...]:
    """Let one choice be an expert of another device, and leave the second expert unchosen."""
    ids = ids.at[0, 1].set(STACK.experts)
    # Each token has two of five experts. Move id 1 to 2, or to 0 if the token already has 2.
    free = (ids.sum(axis=1, keepdims=True) - ids) != 2
    ids = ids + ((ids == 1) & free) - ((ids == 1) & ~free)
    return x, stacks, ids, weights, *own
