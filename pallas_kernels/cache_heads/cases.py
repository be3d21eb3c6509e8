"""Cases of `cache_heads`: decode and verify steps of the drafts and of MiniMax."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cache_heads import pallas, reference
from pallas_kernels.cache_heads.rows import HeadNorms, HeadRows
from pallas_kernels.cache_latents.cases import example_parts
from pallas_kernels.case import Case
from pallas_kernels.partial_sums import total
from pallas_kernels.rms_norm import Norm
from pallas_kernels.shapes import DECODE_ROWS, GROUPED_ATTENTION, GroupedAttention

PAGES, PAGE_SIZE = 2048, 64
PARTS = 4
"""Partial sums of the draft's q, k and v, as `joint_matmul` makes them at TP 4 on MI355X."""
MINIMAX_ROPE = 64
"""Rotated dimensions of MiniMax's heads, which have 128."""


def cases() -> list[Case]:
    return [
        make_case(shape, rows, fp8)
        for shape in GROUPED_ATTENTION
        for rows in DECODE_ROWS
        for fp8 in (False, True)
    ]


def make_case(shape: GroupedAttention, rows: int, fp8: bool, pages: int = PAGES) -> Case:
    # The draft's products are partial sums. MiniMax's are summed before, because `head_squares`
    # reads them.
    read = 2 if shape.name.startswith("minimax") else 4 * PARTS
    asked, kept = (rows * heads * shape.head_dim for heads in (shape.heads, shape.kv_heads))
    return Case(
        operation="cache_heads",
        shape=shape.name,
        variant=f"rows{rows}" + "_fp8" * fp8,
        run=partial(_run, pallas.cache_heads),
        reference=partial(_run, reference.cache_heads),
        example=partial(_example, shape, rows, fp8, pages),
        kernels=("cache_heads",),
        bytes_moved=(read + 2) * asked + 2 * kept * (read + (1 if fp8 else 2)),
        flops=6 * (asked + kept),
        decode=rows <= 64,
    )


def _run(operation: Any, norms: Any, *arrays: Any) -> Any:
    """Call `operation` with both pools at one scale, and HeadNorms if their arrays are given."""
    *given, k_pool, v_pool, pages, offsets, scale = arrays
    if norms is not None:
        q, k, squares = norms
        norms = HeadNorms(Norm(q, 1e-6), Norm(k, 1e-6), squares, 1)
    rows = HeadRows._make([*given, pages, offsets, scale, scale, norms])
    return operation(rows, k_pool, v_pool)


def _example(
    shape: GroupedAttention, rows: int, fp8: bool, pages: int, seed: int
) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 6)
    minimax = shape.name.startswith("minimax")
    widths = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
    products = [
        example_parts(key, PARTS, rows, width) for key, width in zip(keys, widths, strict=False)
    ]
    q, k, v = map(total, products) if minimax else products
    half = (MINIMAX_ROPE if minimax else shape.head_dim) // 2
    angles = jax.random.uniform(keys[3], (rows, 1, half), maxval=6.3)
    place = jax.random.permutation(keys[4], pages * PAGE_SIZE)[:rows, None]
    dtype = jnp.float8_e4m3fn if fp8 else jnp.bfloat16
    return (
        _norms(total(q), total(k)) if minimax else None,
        *(q, k, v, jnp.cos(angles), jnp.sin(angles)),
        *(jnp.zeros((pages, PAGE_SIZE, shape.kv_heads, shape.head_dim), dtype),) * 2,
        place // PAGE_SIZE,
        place % PAGE_SIZE,
        jnp.float32(0.25) if fp8 else None,
    )


def _norms(q: Array, k: Array) -> tuple[Array, Array, Array]:
    squares = jnp.stack([jnp.sum(x.astype(jnp.float32) ** 2, axis=-1) for x in (q, k)], axis=-1)
    q_weight, k_weight = (jnp.ones(x.shape[-1], jnp.bfloat16) for x in (q, k))
    return q_weight, k_weight, squares
