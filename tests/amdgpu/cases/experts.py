"""Small cases of routed experts: three steps, rows of several experts, one that nobody chose."""

from dataclasses import replace
from functools import partial
from typing import Any

from amdgpu.cases.emulated import EmulatedCase
from amdgpu.cases.launches import named
from amdgpu.cases.tolerances import of_experts
from pallas_kernels.case import Case
from pallas_kernels.grouped_matmul import api
from pallas_kernels.grouped_matmul import cases as grouped
from pallas_kernels.grouped_matmul.shared import GatedKernels
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.shapes import EXPERTS, ExpertStack

STACK = ExpertStack("small", 5, 2, 384, 256)
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
    (kimi_stack,) = (stack for stack in EXPERTS if stack.name == kimi)
    small, real = _with_shared(STACK, INT4, TOKENS), _with_shared(kimi_stack, INT4, 16)
    shared = EmulatedCase.small(small, real, of_experts(INT4), _elsewhere, idle_rows=True)
    return [*routed, shared]


def _elsewhere(x: Any, stacks: Any, ids: Any, weights: Any, *own: Any) -> tuple[Any, ...]:
    """One choice is an expert of another device, and nobody here chooses the second one."""
    ids = ids.at[0, 1].set(STACK.experts)
    # Of five experts a token has two: the one after is not the other.
    free = (ids.sum(axis=1, keepdims=True) - ids) != 2
    ids = ids + ((ids == 1) & free) - ((ids == 1) & ~free)
    return x, stacks, ids, weights, *own


def _with_shared(stack: ExpertStack, format: QuantFormat | None, tokens: int) -> Case:
    """Kimi's layer: a shared expert in bfloat16 beside routed ones in this format."""
    routed = grouped.make_case(stack, format, tokens)
    one = grouped.make_case(ExpertStack("shared", 1, 1, stack.hidden, stack.inter), None, tokens)

    def example(seed: int) -> tuple[Any, ...]:
        gate, up, down = (matrix[0] for matrix in one.example(seed + 1)[1])
        return *routed.example(seed), GatedKernels(gate, up, down)

    return replace(
        routed,
        variant=f"{routed.variant} shared",
        run=partial(_run, "pallas"),
        reference=partial(_run, "reference"),
        example=example,
    )


def _run(implementation: str, x: Any, stacks: Any, ids: Any, weights: Any, own: Any) -> Any:
    gate, up, down = stacks
    return api.grouped_mlp(
        x, gate, up, down, ids, weights, shared=own, implementation=implementation
    )
