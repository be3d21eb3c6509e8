"""Small cases of every operation in every format, with the tiles of the real shapes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from eagle3_tools.amdgpu.cases.attention import attention_cases
from eagle3_tools.amdgpu.cases.emulated import EmulatedCase
from eagle3_tools.amdgpu.cases.experts import expert_cases
from eagle3_tools.amdgpu.cases.launches import named
from eagle3_tools.amdgpu.cases.products import product_cases
from eagle3_tools.amdgpu.cases.rows import row_cases
from eagle3_tools.amdgpu.cases.tolerances import BF16, Tolerance, of_experts
from eagle3_tools.amdgpu.cases.variety import unlike_contexts, unlike_scales
from eagle3_tools.kernel_cases.experts import KIMI


def emulated_cases() -> list[EmulatedCase]:
    """Return the small cases, then three real shapes of Kimi's for the long form."""
    return [
        *(*attention_cases(), *product_cases(), *expert_cases(), *row_cases()),
        _real("mla_decode kimi.attention@tp8 q4_8k_page64", BF16, _with_contexts),
        _real("grouped_mlp kimi.experts@tp8 mxfp4_mxfp4 tokens16", of_experts(KIMI[4])),
        _real("fp8_matmul kimi.o_proj@tp1 ptpc rows16", BF16),
    ]


def _real(
    name: str,
    tolerance: Tolerance,
    vary: Callable[..., tuple[Any, ...]] = lambda *arguments: arguments,
) -> EmulatedCase:
    like = named(name)
    example = lambda seed: unlike_scales(vary(*like.example(seed)), seed)  # noqa: E731
    experts = like.operation == "grouped_mlp"
    made = replace(like, example=example)
    return EmulatedCase(made, like, tolerance, idle_rows=experts, long=True)


def _with_contexts(q: Any, q_rope: Any, paged: Any) -> tuple[Any, ...]:
    slots = paged.page_table.shape[1] * paged.page_size
    lengths = (slots - 37 * number for number in range(len(paged.positions)))
    return q, q_rope, unlike_contexts(paged, *lengths)
