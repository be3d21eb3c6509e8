"""Cases of latent attention: decode steps, prompt chunks, and contexts split over devices."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from eagle3_tools.kernel_cases.case import ARCHS, Case, forms
from eagle3_tools.kernel_cases.paged import LONG, PagedCase
from eagle3_tools.kernel_cases.quantized import matrix_instruction
from eagle3_tools.kernel_cases.shapes import LATENT_ATTENTION, LatentAttention
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.mla import MLA_DECODE
from pallas_kernels.paged.mla_partial import ATTEND_SHARE, SHARE_VALUES
from pallas_kernels.paged.mla_prefill import MLA_PREFILL, MLA_PREFILL_PART
from pallas_kernels.paged.partial import MASS, pack

SCALE, NOPE, VALUE = 192**-0.5, 128, 128
EVERYWHERE = [
    *(PagedCase(q_len, 8192) for q_len in (1, 4, 7)),
    *(PagedCase(q_len, 8192, fp8=True) for q_len in (1, 4)),
]
AT_TP4 = [
    *(PagedCase(q_len, 1024) for q_len in (1, 4)),
    *(PagedCase(4, 8192, page_size=size) for size in (1, 16, 128)),
    PagedCase(7, 8192, tree=True),
]
CHUNKS = [
    PagedCase(512, 1024, batch=1),
    PagedCase(1024, 8192, batch=1),
    PagedCase(1024, 8192, batch=1, fp8=True),
]
ALL_HEADS, LONGEST = 64, 100 * 1024
"""Kimi-K2.5's heads; slots of the longest timed contexts."""


def cases() -> list[Case]:
    """Return cases for each tensor-parallel size, and of all heads at a part of the context."""
    shared = [shape for shape in LATENT_ATTENTION if shape.heads < ALL_HEADS]
    return [
        *_decode_cases(),
        *(mla_prefill_case(shape, paged) for shape in LATENT_ATTENTION for paged in CHUNKS),
        *(mla_prefill_part_case(LATENT_ATTENTION[-1], paged) for paged in CHUNKS[:2]),
        *(
            attend_share_case(shape, paged)
            for shape in shared
            for paged in _parts(groups_of(shape))
        ),
        *(share_values_case(shape, rows) for shape in shared for rows in (16, 64, 256)),
    ]


def _decode_cases() -> list[Case]:
    """Return a case for each tensor-parallel size, and at TP4 also page sizes, a short context and
    a tree. Some cases include value_kernel, as the layer calls it."""
    bare = [
        mla_decode_case(shape, paged)
        for shape in LATENT_ATTENTION
        for paged in EVERYWHERE + (AT_TP4 if shape.name.endswith("@tp4") else [])
    ]
    whole = [mla_decode_with_values(shape, PagedCase(4, 8192)) for shape in LATENT_ATTENTION]
    long = [
        replace(mla_decode_with_values(shape, PagedCase(q_len, LONG, batch=batch)), decode=False)
        for shape in LATENT_ATTENTION
        for q_len in (1, 4)
        for batch in (16, 64)
    ]
    return bare + whole + long


def mla_decode_with_values(shape: LatentAttention, paged: PagedCase) -> Case:
    """Add value_kernel to a case."""
    bare = mla_decode_case(shape, paged)
    matrices = shape.heads * shape.kv_lora * VALUE

    def example(seed: int) -> tuple[Any, ...]:
        kernel = jax.random.normal(
            jax.random.key(seed + 1), (shape.heads, shape.kv_lora, VALUE), jnp.bfloat16
        )
        return *bare.example(seed), kernel * shape.kv_lora**-0.5

    return replace(
        bare,
        variant=f"{bare.variant}_values",
        example=example,
        kernels=("mla_decode", "mla_decode_values"),
        bytes_moved=bare.bytes_moved + 2 * matrices,
        flops=bare.flops + 2 * paged.batch * paged.q_len * matrices,
    )


def mla_decode_case(shape: LatentAttention, paged: PagedCase) -> Case:
    width = shape.kv_lora + shape.rope
    scores = paged.batch * paged.q_len * shape.heads * paged.context
    slots = paged.batch * paged.context
    queries = paged.batch * paged.q_len * shape.heads
    crowded = paged.fp8 or paged.tree  # Keys are widened, or masked, in registers.
    return Case(
        **forms(MLA_DECODE, _mla_decode),
        shape=shape.name,
        variant=paged.variant,
        example=partial(_mla_example, shape, paged),
        kernels=("mla_decode", "mla_decode_merge"),
        matrix=matrix_instruction(None, 0 if crowded else paged.q_len * shape.heads),
        bytes_moved=slots * width * jnp.dtype(paged.kv_dtype).itemsize
        + queries * (width + shape.kv_lora) * 2,
        flops=2 * scores * (width + shape.kv_lora),
        decode=True,
    )


def _mla_decode(form: Any, q: Any, q_rope: Any, paged: PagedKV, value_kernel: Any = None) -> Any:
    return form(q, q_rope, paged, SCALE, value_kernel=value_kernel)


def _mla_example(shape: LatentAttention, paged: PagedCase, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 4)
    return (
        paged.queries(keys[0], shape.heads, shape.kv_lora),
        paged.queries(keys[1], shape.heads, shape.rope),
        paged.view(keys[3], paged.pool(keys[2], shape.kv_lora + shape.rope)),
    )


def mla_prefill_part_case(shape: LatentAttention, paged: PagedCase) -> Case:
    """Build the case of a context part, with float32 values and masses."""
    whole = mla_prefill_case(shape, paged)
    return replace(
        whole,
        operation="mla_prefill_part",
        run=partial(_mla_prefill, MLA_PREFILL_PART.pallas),
        reference=partial(_mla_prefill, MLA_PREFILL_PART.reference),
        kernels=("mla_prefill_expand", "mla_prefill_part"),
        bytes_moved=whole.bytes_moved + paged.batch * paged.q_len * shape.heads * (2 * VALUE + 4),
    )


def mla_prefill_case(shape: LatentAttention, paged: PagedCase) -> Case:
    width, slots = shape.kv_lora + shape.rope, paged.batch * paged.context
    rows = paged.batch * paged.q_len * shape.heads
    seen = paged.context - paged.q_len // 2
    return Case(
        **forms(MLA_PREFILL, _mla_prefill),
        shape=shape.name,
        variant=paged.variant,
        example=partial(_prefill_example, shape, paged),
        kernels=("mla_prefill_expand", "mla_prefill"),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=slots * width * jnp.dtype(paged.kv_dtype).itemsize
        + rows * (NOPE + shape.rope + VALUE) * 2
        + shape.heads * shape.kv_lora * (NOPE + VALUE) * 2,
        flops=2 * rows * seen * (NOPE + shape.rope + VALUE)
        + 2 * slots * shape.heads * shape.kv_lora * (NOPE + VALUE),
    )


def _mla_prefill(form: Any, q: Any, q_rope: Any, keys: Any, values: Any, paged: PagedKV) -> Any:
    return form(q, q_rope, paged, SCALE, keys, values)


def _prefill_example(shape: LatentAttention, paged: PagedCase, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 6)

    def kernel(key: Any, size: int) -> Any:
        weights = jax.random.normal(key, (shape.heads, shape.kv_lora, size), jnp.bfloat16)
        return weights * shape.kv_lora**-0.5

    return (
        paged.queries(keys[0], shape.heads, NOPE),
        paged.queries(keys[1], shape.heads, shape.rope),
        kernel(keys[2], NOPE),
        kernel(keys[3], VALUE),
        paged.view(keys[5], paged.pool(keys[4], shape.kv_lora + shape.rope)),
    )


def groups_of(shape: LatentAttention) -> int:
    """Return the number of devices that share the heads and the context."""
    return ALL_HEADS // shape.heads


def _parts(groups: int) -> Iterator[PagedCase]:
    for q_len in (1, 4):
        for context in (LONG // groups, LONGEST // groups):
            yield from (PagedCase(q_len, context, batch=batch) for batch in (16, 64))
        # A batch for which every GPU splits the context, with its tiles of 32 or 64 rows.
        yield PagedCase(q_len, LONG // groups, fp8=True, batch=16 if q_len == 1 else 8)


def attend_share_case(shape: LatentAttention, paged: PagedCase, groups: int | None = None) -> Case:
    """Build the case of all devices' heads and one device's part of the context."""
    groups = groups or groups_of(shape)
    width, rows = shape.kv_lora + shape.rope, groups * paged.q_len * shape.heads
    slots = paged.batch * paged.context

    def example(seed: int) -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(seed), 4)
        dims = paged.batch, paged.q_len, shape.heads
        return (
            jax.random.normal(keys[0], (groups, *dims, shape.kv_lora), jnp.bfloat16),
            jax.random.normal(keys[1], (groups, *dims, shape.rope), jnp.bfloat16),
            paged.view(keys[3], paged.pool(keys[2], width)),
        )

    return Case(
        **forms(ATTEND_SHARE, _attend_share),
        shape=shape.name,
        variant=paged.variant,
        example=example,
        kernels=_kernels(paged.batch * rows),
        matrix=matrix_instruction(None, 0 if paged.fp8 else rows),
        bytes_moved=slots * width * jnp.dtype(paged.kv_dtype).itemsize
        + paged.batch * rows * (width + shape.kv_lora + MASS) * 2,
        flops=2 * rows * slots * (width + shape.kv_lora),
        # One case for each kernel and format; the others differ only in batch.
        decode=groups == 8 and paged.context < LONG and (paged.q_len == 1) == paged.fp8,
    )


def _kernels(rows: int) -> tuple[str, ...]:
    """Return the kernels launched. With as many programs of 64 rows as a GPU has compute units, or
    more than half as many, contexts are not split."""
    return ("mla_share",) if rows >= 64 * 256 else ("mla_share_parts", "mla_share_merge")


def share_values_case(shape: LatentAttention, rows: int, groups: int | None = None) -> Case:
    groups = groups or groups_of(shape)
    matrices = shape.heads * shape.kv_lora * VALUE
    shares = groups * rows * shape.heads * (shape.kv_lora + MASS)

    def example(seed: int) -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(seed), 3)
        dims = groups, rows, 1, shape.heads
        means = jax.random.normal(keys[0], (*dims, shape.kv_lora))
        masses = jax.random.uniform(keys[1], dims, maxval=12.0)
        kernel = jax.random.normal(keys[2], (shape.heads, shape.kv_lora, VALUE), jnp.bfloat16)
        return pack(means, masses, jnp.bfloat16), kernel * shape.kv_lora**-0.5

    return Case(
        **forms(SHARE_VALUES),
        shape=shape.name,
        variant=f"rows{rows}",
        example=example,
        kernels=("mla_share_values",),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=2 * (shares + matrices + rows * shape.heads * VALUE),
        flops=2 * rows * matrices,
        decode=groups == 8 and rows == 64,
    )


def _attend_share(form: Any, q: Any, q_rope: Any, paged: PagedKV) -> Any:
    return form(q, q_rope, paged, SCALE)
