"""Cases of attention with keys and values for each head: drafts, MiniMax, Kimi-K2.5's images."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from eagle3_tools.kernel_cases.case import ARCHS, Case, forms
from eagle3_tools.kernel_cases.paged import LONG, PagedCase
from eagle3_tools.kernel_cases.shapes import (
    GROUPED_ATTENTION,
    VISION_ATTENTION,
    GroupedAttention,
    VisionAttention,
)
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.item_attention import ITEM_ATTENTION
from pallas_kernels.paged.gqa import GQA_DECODE
from pallas_kernels.paged.gqa_partial import GQA_SHARE
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.partial import MASS
from pallas_kernels.quantized import QuantFormat, QuantizedRows

BLOCK_FP8 = QuantFormat("fp8_block", "fp8_group")
DRAFT = [*(PagedCase(q_len, 1024) for q_len in (1, 4, 7)), PagedCase(1, 1024, fp8=True)]
TARGET = [*(PagedCase(q_len, 8192) for q_len in (1, 4, 7)), PagedCase(4, 8192, fp8=True)]
AT_TP4 = [
    *(PagedCase(1, 1024, page_size=size) for size in (1, 16, 128)),
    PagedCase(4, 1024, tree=True),
]
AT_TP16, GROUPS = GroupedAttention("minimax.attention@tp16", 3, 1), 2
"""MiniMax's KV heads, with six query heads each, split over two devices."""
PARTS = [
    *(PagedCase(q_len, LONG // GROUPS, batch=batch) for q_len in (1, 4) for batch in (16, 64)),
    PagedCase(4, LONG // GROUPS, fp8=True),
]
PACKED = ((256,), (1024, 1024, 2040, 8), (16_900, 3580))
"""Patches of images in one array, with padding last: a small image, several, the largest one."""


def cases() -> list[Case]:
    """Return cases of drafts (one key-value head for each query head), MiniMax (one for six), parts
    of MiniMax's contexts, and images."""
    every = [
        gqa_decode_case(shape, paged) for shape in GROUPED_ATTENTION for paged in _contexts(shape)
    ]
    minimax = [shape for shape in GROUPED_ATTENTION if shape.name.startswith("minimax")]
    quantised = [gqa_decode_case(shape, TARGET[1], BLOCK_FP8) for shape in minimax]
    long = [
        replace(gqa_decode_case(shape, PagedCase(q_len, LONG, batch=batch)), decode=False)
        for shape in GROUPED_ATTENTION
        for q_len in (1, 4)
        for batch in (16, 64)
    ]
    parts = [gqa_share_case(AT_TP16, paged) for paged in PARTS]
    images = [item_attention_case(shape, items) for shape in VISION_ATTENTION for items in PACKED]
    return every + quantised + long + parts + images


def _contexts(shape: GroupedAttention) -> list[PagedCase]:
    if not shape.name.startswith("draft"):
        return TARGET
    return DRAFT + (AT_TP4 if shape.name.endswith("@tp4") else [])


def gqa_decode_case(
    shape: GroupedAttention, paged: PagedCase, then: QuantFormat | None = None
) -> Case:
    slots, rows = paged.batch * paged.context, paged.batch * paged.q_len
    kept = 2 * shape.kv_heads * shape.head_dim * jnp.dtype(paged.kv_dtype).itemsize
    return Case(
        operation="gqa_decode",
        shape=shape.name,
        variant=paged.variant + ("" if then is None else f" {then.activations}"),
        run=partial(_gqa_decode, GQA_DECODE.pallas, then),
        reference=partial(_gqa_decode, _gqa_reference, then),
        example=partial(_gqa_example, shape, paged),
        kernels=("gqa_decode", "gqa_decode_merge" + ("" if then is None else "_fp8")),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=slots * kept + rows * shape.heads * shape.head_dim * 4,
        flops=4 * rows * shape.heads * paged.context * shape.head_dim,
        decode=True,
    )


def _gqa_decode(form: Any, then: QuantFormat | None, q: Any, paged: PagedKV) -> Any:
    return form(q, paged, 128**-0.5, then=then)


def _gqa_reference(q: Any, paged: PagedKV, scale: float, *, then: QuantFormat | None) -> Any:
    """Run the reference and quantise the heads as the following product would."""
    heads = GQA_DECODE.reference(q, paged, scale)
    if then is None:
        return heads
    values, factors = quantize(heads.reshape(-1, heads.shape[-1]), grouped=True)
    rows = heads.shape[:2]
    return QuantizedRows(values.reshape(*rows, -1), factors.reshape(*rows, -1), heads.dtype)


def _gqa_example(shape: GroupedAttention, paged: PagedCase, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 4)
    row = shape.kv_heads, shape.head_dim
    return (
        paged.queries(keys[0], shape.heads, shape.head_dim),
        paged.view(keys[3], paged.pool(keys[1], *row), paged.pool(keys[2], *row)),
    )


def gqa_share_case(shape: GroupedAttention, paged: PagedCase, groups: int = GROUPS) -> Case:
    rows, slots = groups * paged.batch * paged.q_len * shape.heads, paged.batch * paged.context
    kept = 2 * shape.head_dim * jnp.dtype(paged.kv_dtype).itemsize
    return Case(
        **forms(GQA_SHARE, _gqa_share),
        shape=shape.name,
        variant=paged.variant,
        example=partial(_share_example, shape, paged, groups),
        kernels=("gqa_share", "gqa_share_merge"),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=slots * kept + rows * (2 * shape.head_dim + MASS) * 2,
        flops=4 * rows * paged.context * shape.head_dim,
        decode=paged.q_len == 4 and paged.batch == 16,
    )


def _gqa_share(form: Any, q: Any, paged: PagedKV) -> Any:
    return form(q, paged, 128**-0.5)


def _share_example(
    shape: GroupedAttention, paged: PagedCase, groups: int, seed: int
) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 4)
    pools = (paged.pool(key, 1, shape.head_dim) for key in keys[1:3])
    dims = groups, paged.batch, paged.q_len, shape.heads, shape.head_dim
    return jax.random.normal(keys[0], dims, jnp.bfloat16), paged.view(keys[3], *pools)


def item_attention_case(shape: VisionAttention, items: Sequence[int]) -> Case:
    rows, width = sum(items), shape.heads * shape.head_dim
    return Case(
        **forms(ITEM_ATTENTION, _item_attention),
        shape=shape.name,
        variant=f"rows{rows}",
        example=partial(_item_example, shape, tuple(items)),
        kernels=("item_attention",),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=4 * rows * width * 2 + 4 * rows,
        flops=4 * sum(size * size for size in items) * width,
    )


def _item_attention(form: Any, q: Any, k: Any, v: Any, items: Any) -> Any:
    return form(q, k, v, items, q.shape[-1] ** -0.5)


def _item_example(shape: VisionAttention, items: tuple[int, ...], seed: int) -> tuple[Any, ...]:
    size = sum(items), shape.heads, shape.head_dim
    q, k, v = (
        jax.random.normal(key, size, jnp.bfloat16)
        for key in jax.random.split(jax.random.key(seed), 3)
    )
    numbers = jnp.repeat(jnp.arange(len(items)), jnp.array(items), total_repeat_length=size[0])
    return q, k, v, numbers
