"""Cases of `gqa_decode`: attention of the drafts and of MiniMax at the published shapes."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.case import ARCHS, Case
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.gqa_decode import pallas, reference
from pallas_kernels.paged.case import LONG, PagedCase
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.quantized import QuantFormat, QuantizedRows
from pallas_kernels.shapes import GROUPED_ATTENTION, GroupedAttention

BLOCK_FP8 = QuantFormat("fp8_block", "fp8_group")
DRAFT = [*(PagedCase(q_len, 1024) for q_len in (1, 4, 7)), PagedCase(1, 1024, fp8=True)]
TARGET = [*(PagedCase(q_len, 8192) for q_len in (1, 4, 7)), PagedCase(4, 8192, fp8=True)]
AT_TP4 = [
    *(PagedCase(1, 1024, page_size=size) for size in (1, 16, 128)),
    PagedCase(4, 1024, tree=True),
]


def cases() -> list[Case]:
    """Return cases of drafts (one key-value head for each query head) and MiniMax (one for six)."""
    every = [make_case(shape, paged) for shape in GROUPED_ATTENTION for paged in _contexts(shape)]
    minimax = [shape for shape in GROUPED_ATTENTION if shape.name.startswith("minimax")]
    quantised = [make_case(shape, TARGET[1], BLOCK_FP8) for shape in minimax]
    long = [
        replace(make_case(shape, PagedCase(q_len, LONG, batch=batch)), decode=False)
        for shape in GROUPED_ATTENTION
        for q_len in (1, 4)
        for batch in (16, 64)
    ]
    return every + quantised + long


def _contexts(shape: GroupedAttention) -> list[PagedCase]:
    if not shape.name.startswith("draft"):
        return TARGET
    return DRAFT + (AT_TP4 if shape.name.endswith("@tp4") else [])


def make_case(shape: GroupedAttention, paged: PagedCase, then: QuantFormat | None = None) -> Case:
    slots, rows = paged.batch * paged.context, paged.batch * paged.q_len
    kept = 2 * shape.kv_heads * shape.head_dim * jnp.dtype(paged.kv_dtype).itemsize
    return Case(
        operation="gqa_decode",
        shape=shape.name,
        variant=paged.variant + ("" if then is None else f" {then.activations}"),
        run=partial(_run, pallas.gqa_decode, then),
        reference=partial(_run, _reference, then),
        example=partial(_example, shape, paged),
        kernels=("gqa_decode", "gqa_decode_merge" + ("" if then is None else "_fp8")),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=slots * kept + rows * shape.heads * shape.head_dim * 4,
        flops=4 * rows * shape.heads * paged.context * shape.head_dim,
        decode=True,
    )


def _run(operation: Any, then: QuantFormat | None, q: Any, paged: PagedKV) -> Any:
    return operation(q, paged, 128**-0.5, then=then)


def _reference(q: Any, paged: PagedKV, scale: float, *, then: QuantFormat | None) -> Any:
    """Run the reference and quantise the heads as the following product would."""
    heads = reference.gqa_decode(q, paged, scale)
    if then is None:
        return heads
    values, factors = quantize(heads.reshape(-1, heads.shape[-1]), grouped=True)
    rows = heads.shape[:2]
    return QuantizedRows(values.reshape(*rows, -1), factors.reshape(*rows, -1), heads.dtype)


def _example(shape: GroupedAttention, paged: PagedCase, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 4)
    row = shape.kv_heads, shape.head_dim
    return (
        paged.queries(keys[0], shape.heads, shape.head_dim),
        paged.view(keys[3], paged.pool(keys[1], *row), paged.pool(keys[2], *row)),
    )
