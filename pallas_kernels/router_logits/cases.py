"""Cases of `router_logits`: MiniMax's router, the same on every device."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.case import AMD, NVIDIA, Case
from pallas_kernels.router_logits import pallas, reference
from pallas_kernels.shapes import DECODE_ROWS, EXPERTS, MOST_DECODE_ROWS, ExpertStack


def cases() -> list[Case]:
    (stack,) = (stack for stack in EXPERTS if stack.name == "minimax.experts@tp8")
    return [make_case(stack, rows) for rows in (*DECODE_ROWS, MOST_DECODE_ROWS)]


def make_case(stack: ExpertStack, rows: int) -> Case:
    return Case(
        operation="router_logits",
        shape=stack.name,
        variant=f"rows{rows}",
        run=pallas.router_logits,
        reference=reference.router_logits,
        example=partial(_example, stack, rows),
        kernels=("router_logits",),
        matrix=dict.fromkeys(AMD, "f32") | dict.fromkeys(NVIDIA, ""),
        bytes_moved=2 * rows * stack.hidden + 4 * stack.experts * (stack.hidden + rows),
        flops=2 * rows * stack.hidden * stack.experts,
        decode=rows <= 64,
        tolerance=1e-5,
    )


def _example(stack: ExpertStack, rows: int, seed: int) -> tuple[Array, Array]:
    keys = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(keys[0], (rows, stack.hidden), jnp.bfloat16)
    return x, jax.random.normal(keys[1], (stack.hidden, stack.experts)) / stack.hidden**0.5
