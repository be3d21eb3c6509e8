"""Cases of `head_squares`: rows of a decode or verify step of MiniMax."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.case import Case
from pallas_kernels.head_squares import pallas, reference
from pallas_kernels.shapes import DECODE_ROWS, GROUPED_ATTENTION, GroupedAttention


def cases() -> list[Case]:
    normed = [shape for shape in GROUPED_ATTENTION if shape.name.startswith("minimax")]
    return [make_case(shape, rows) for shape in normed for rows in DECODE_ROWS]


def make_case(shape: GroupedAttention, rows: int) -> Case:
    values = rows * (shape.heads + shape.kv_heads) * shape.head_dim
    return Case(
        operation="head_squares",
        shape=shape.name,
        variant=f"rows{rows}",
        run=pallas.head_squares,
        reference=reference.head_squares,
        example=partial(_example, shape, rows),
        kernels=("head_squares",),
        bytes_moved=2 * values + 8 * rows,
        flops=2 * values,
        decode=rows <= 64,
    )


def _example(shape: GroupedAttention, rows: int, seed: int) -> tuple[Array, Array]:
    keys = jax.random.split(jax.random.key(seed))
    heads = shape.heads, shape.kv_heads
    q, k = (
        jax.random.normal(key, (rows, count * shape.head_dim), jnp.bfloat16)
        for key, count in zip(keys, heads, strict=True)
    )
    return q, k
