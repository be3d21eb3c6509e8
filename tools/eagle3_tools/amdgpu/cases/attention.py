"""Small cases of attention: a long context in several parts, and one of 21 slots."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from eagle3_tools.amdgpu.cases.emulated import EmulatedCase
from eagle3_tools.amdgpu.cases.errors import (
    dequantised_error,
    largest_error,
    part_error,
    share_error,
)
from eagle3_tools.amdgpu.cases.launches import named
from eagle3_tools.amdgpu.cases.tolerances import BF16, FP8_ROWS
from eagle3_tools.amdgpu.cases.variety import unlike_contexts
from eagle3_tools.kernel_cases import attention, latent_attention
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_cases.paged import PagedCase
from eagle3_tools.kernel_cases.shapes import GroupedAttention, LatentAttention, VisionAttention
from pallas_kernels.paged.kv import PagedKV

LENGTHS = 300, 21
"""Slots of the two sequences: parts of 128, 128 and 44, or 256 and 44; and at most two steps."""
PREFIX = 11
"""Slots before a prefill chunk."""
LONG_CHUNK = PagedCase(520, 576, batch=1, fp8=True)
SHARED = "kimi.attention@tp8"


def attention_cases() -> list[EmulatedCase]:
    """Return a case for every row tile, with page sizes, float8 pools, trees and epilogues."""
    return [*_latent(), *_shares(), *_grouped(), *_prefill(), _items()]


def _latent() -> list[EmulatedCase]:
    """Return MLA decode cases with heads that fill no tile; ten heads take two tiles."""
    decode = partial(_decode, LatentAttention, latent_attention.mla_decode_case)
    return [
        decode("mla_decode kimi.attention@tp8 q4_8k_page64", (10,), PagedCase(4, 320)),
        decode("mla_decode kimi.attention@tp8 q1_8k_page64_fp8", (5,), PagedCase(1, 320, fp8=True)),
        decode("mla_decode kimi.attention@tp4 q4_8k_page1", (5,), PagedCase(4, 300, page_size=1)),
        decode(
            "mla_decode kimi.attention@tp4 q7_8k_page64_tree", (5,), PagedCase(7, 320, tree=True)
        ),
        _decode(
            LatentAttention,
            latent_attention.mla_decode_with_values,
            "mla_decode kimi.attention@tp4 q4_8k_page64_values",
            (5,),
            PagedCase(4, 320),
        ),
    ]


def _shares() -> list[EmulatedCase]:
    """Return cases of partial attention on three devices: split again, two row tiles, float8.

    The last case merges eight parts of two heads, with a row tile that is not full.
    """
    cases = []
    for like, heads, paged in (
        ("q4_1.0625k_page64", 2, PagedCase(4, 320)),
        ("q4_1.0625k_page64_b64", 6, PagedCase(4, 320)),
        ("q1_1.0625k_page64_fp8", 2, PagedCase(1, 320, fp8=True)),
    ):
        real = f"attend_share {SHARED} {like}"
        make = partial(latent_attention.attend_share_case, groups=3)
        case = _decode(LatentAttention, make, real, (heads,), paged)
        made = replace(case.case, kernels=named(real).kernels)
        cases.append(replace(case, case=made, compare=share_error))
    values = latent_attention.share_values_case(LatentAttention("small", 2), 19, 8)
    return [*cases, EmulatedCase.small(values, named(f"share_values {SHARED} rows64"), BF16)]


def _grouped() -> list[EmulatedCase]:
    """Return GQA cases: two KV heads with a query head each (drafts), one KV head with six."""
    decode = partial(_decode, GroupedAttention, attention.gqa_decode_case)
    draft, minimax = "gqa_decode draft_mha.attention@tp4", "gqa_decode minimax.attention@tp8"
    in_fp8 = _decode(
        GroupedAttention,
        partial(attention.gqa_decode_case, then=attention.BLOCK_FP8),
        f"{minimax} q4_8k_page64 fp8_group",
        (6, 1),
        PagedCase(4, 320),
    )
    return [
        decode(f"{draft} q1_1k_page16", (2, 2), PagedCase(1, 304, page_size=16)),
        decode(f"{draft} q1_1k_page64_fp8", (2, 2), PagedCase(1, 320, fp8=True)),
        decode(f"{draft} q4_1k_page64_tree", (2, 2), PagedCase(4, 320, tree=True)),
        decode(f"{minimax} q4_8k_page64_fp8", (6, 1), PagedCase(4, 320, fp8=True)),
        replace(in_fp8, tolerance=FP8_ROWS, compare=dequantised_error),
        *_grouped_shares(),
    ]


def _grouped_shares() -> list[EmulatedCase]:
    """Return cases of partial attention on two devices that share a KV head."""
    decode = partial(_decode, GroupedAttention, attention.gqa_share_case)
    real = "gqa_share minimax.attention@tp16"
    cases = [
        decode(f"{real} q4_4.25k_page64", (3, 1), PagedCase(4, 320)),
        decode(f"{real} q4_4.25k_page64_fp8", (3, 1), PagedCase(4, 320, fp8=True)),
    ]
    return [replace(case, compare=share_error) for case in cases]


def _prefill() -> list[EmulatedCase]:
    """Return cases of prefill chunks of three and five row tiles after a prefix, the last not full.

    One more is at a part of its context, of which the first rows see nothing.
    """
    chunk, whole, part = (
        PagedCase(300, 320, batch=1),
        latent_attention.mla_prefill_case,
        latent_attention.mla_prefill_part_case,
    )
    cases = []
    for like, heads, paged, make, before, compare in (
        ("q512_1k_page64_b1", 2, chunk, whole, PREFIX, largest_error),
        ("q1024_8k_page64_b1_fp8", 1, LONG_CHUNK, whole, PREFIX, largest_error),
        ("q512_1k_page64_b1", 1, chunk, part, -140, part_error),
    ):
        case = make(LatentAttention("small", heads), paged)
        vary = partial(_with_contexts, (before + paged.q_len,))
        real = named(f"{case.operation} {SHARED} {like}")
        cases.append(EmulatedCase.small(case, real, BF16, vary, compare=compare))
    return cases


def _items() -> EmulatedCase:
    """Return a case of three images with partial row and key tiles; the first is in one tile."""
    case = attention.item_attention_case(VisionAttention("small", 2), (41, 150, 70))
    return EmulatedCase.small(case, named("item_attention kimi.vision@tp8 rows4096"), BF16)


def _decode(
    shape: Callable[..., Any],
    make: Callable[..., Case],
    like: str,
    heads: tuple[int, ...],
    paged: PagedCase,
) -> EmulatedCase:
    case = make(shape("small", *heads), replace(paged, batch=len(LENGTHS)))
    return EmulatedCase.small(case, named(like), BF16, partial(_with_contexts, LENGTHS))


def _with_contexts(lengths: tuple[int, ...], *arguments: Any) -> tuple[Any, ...]:
    return tuple(
        unlike_contexts(one, *lengths) if isinstance(one, PagedKV) else one for one in arguments
    )
