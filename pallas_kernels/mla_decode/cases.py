"""Cases of `mla_decode`: latent attention of decode and verify steps at the published shapes."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.case import Case
from pallas_kernels.mla_decode import pallas, reference
from pallas_kernels.paged.case import LONG, PagedCase
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.quantized.examples import matrix_instruction
from pallas_kernels.shapes import LATENT_ATTENTION, LatentAttention

SCALE, VALUE = 192**-0.5, 128
EVERYWHERE = [
    *(PagedCase(q_len, 8192) for q_len in (1, 4, 7)),
    *(PagedCase(q_len, 8192, fp8=True) for q_len in (1, 4)),
]
AT_TP4 = [
    *(PagedCase(q_len, 1024) for q_len in (1, 4)),
    *(PagedCase(4, 8192, page_size=size) for size in (1, 16, 128)),
    PagedCase(7, 8192, tree=True),
]


def cases() -> list[Case]:
    """Return a case for each tensor-parallel size, and at TP4 also page sizes, a short context and
    a tree. Some cases include value_kernel, as the layer calls it."""
    bare = [
        make_case(shape, paged)
        for shape in LATENT_ATTENTION
        for paged in EVERYWHERE + (AT_TP4 if shape.name.endswith("@tp4") else [])
    ]
    whole = [with_values(shape, PagedCase(4, 8192)) for shape in LATENT_ATTENTION]
    long = [
        replace(with_values(shape, PagedCase(q_len, LONG, batch=batch)), decode=False)
        for shape in LATENT_ATTENTION
        for q_len in (1, 4)
        for batch in (16, 64)
    ]
    return bare + whole + long


def with_values(shape: LatentAttention, paged: PagedCase) -> Case:
    """Add value_kernel to a case."""
    bare = make_case(shape, paged)
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


def make_case(shape: LatentAttention, paged: PagedCase) -> Case:
    width = shape.kv_lora + shape.rope
    scores = paged.batch * paged.q_len * shape.heads * paged.context
    slots = paged.batch * paged.context
    queries = paged.batch * paged.q_len * shape.heads
    crowded = paged.fp8 or paged.tree  # Keys are widened, or masked, in registers.
    return Case(
        operation="mla_decode",
        shape=shape.name,
        variant=paged.variant,
        run=partial(_run, pallas.mla_decode),
        reference=partial(_run, reference.mla_decode),
        example=partial(_example, shape, paged),
        kernels=("mla_decode", "mla_decode_merge"),
        matrix=matrix_instruction(None, 0 if crowded else paged.q_len * shape.heads),
        bytes_moved=slots * width * jnp.dtype(paged.kv_dtype).itemsize
        + queries * (width + shape.kv_lora) * 2,
        flops=2 * scores * (width + shape.kv_lora),
        decode=True,
    )


def _run(operation: Any, q: Any, q_rope: Any, paged: PagedKV, value_kernel: Any = None) -> Any:
    return operation(q, q_rope, paged, SCALE, value_kernel=value_kernel)


def _example(shape: LatentAttention, paged: PagedCase, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 4)
    return (
        paged.queries(keys[0], shape.heads, shape.kv_lora),
        paged.queries(keys[1], shape.heads, shape.rope),
        paged.view(keys[3], paged.pool(keys[2], shape.kv_lora + shape.rope)),
    )
