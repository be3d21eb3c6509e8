"""Cases of norms, absorbed queries and router scores: rows of a decode or verify step."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eagle3_tools.kernel_cases.case import AMD, ARCHS, NVIDIA, Case, forms
from eagle3_tools.kernel_cases.shapes import (
    DECODE_ROWS,
    EXPERTS,
    GROUPED_ATTENTION,
    LATENT_ATTENTION,
    MOST_DECODE_ROWS,
    ExpertStack,
    GroupedAttention,
    LatentAttention,
)
from pallas_kernels.absorb_query import ABSORB_QUERY
from pallas_kernels.add_norm import ADD_NORM
from pallas_kernels.head_squares import HEAD_SQUARES
from pallas_kernels.rms_norm import Norm
from pallas_kernels.router_logits import ROUTER_LOGITS

NOPE = 128


def cases() -> list[Case]:
    """Return cases of each device's heads; of norms and routers, which all devices have whole, one
    for each model."""
    widths = {stack.name: stack.hidden for stack in EXPERTS if stack.name.endswith("@tp8")}
    normed = [shape for shape in GROUPED_ATTENTION if shape.name.startswith("minimax")]
    (router,) = (stack for stack in EXPERTS if stack.name == "minimax.experts@tp8")
    return [
        *(absorb_query_case(shape, rows) for shape in LATENT_ATTENTION for rows in DECODE_ROWS),
        *(add_norm_case(*width, rows) for width in widths.items() for rows in DECODE_ROWS),
        *(head_squares_case(shape, rows) for shape in normed for rows in DECODE_ROWS),
        *(router_logits_case(router, rows) for rows in (*DECODE_ROWS, MOST_DECODE_ROWS)),
    ]


def absorb_query_case(shape: LatentAttention, rows: int) -> Case:
    weights = shape.heads * shape.kv_lora * NOPE
    moved = rows * shape.heads * (NOPE + shape.kv_lora + 2 * shape.rope)

    def example(seed: int) -> tuple[Array, ...]:
        keys = jax.random.split(jax.random.key(seed), 3)
        angles = jax.random.uniform(keys[2], (rows, 1, shape.rope // 2), maxval=6.3)
        return (
            jax.random.normal(keys[0], (rows, 1, shape.heads, NOPE + shape.rope), jnp.bfloat16),
            jax.random.normal(keys[1], (shape.heads, shape.kv_lora, NOPE), jnp.bfloat16) / 8,
            jnp.cos(angles),
            jnp.sin(angles),
        )

    return Case(
        **forms(ABSORB_QUERY),
        shape=shape.name,
        variant=f"rows{rows}",
        example=example,
        kernels=("absorb_query",),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=2 * (weights + moved),
        flops=2 * rows * weights,
        decode=rows <= 64,
    )


def add_norm_case(name: str, hidden: int, rows: int) -> Case:
    def example(seed: int) -> tuple[tuple[Array, Array], Array]:
        keys = jax.random.split(jax.random.key(seed))
        x, added = (jax.random.normal(key, (rows, hidden), jnp.bfloat16) for key in keys)
        return (x, added), jnp.ones(hidden, jnp.bfloat16)

    return Case(
        **forms(ADD_NORM, _add_norm),
        shape=name,
        variant=f"rows{rows}",
        example=example,
        kernels=("add_norm",),
        bytes_moved=8 * rows * hidden + 2 * hidden,
        flops=5 * rows * hidden,
        decode=rows <= 64,
    )


def _add_norm(form: Any, rows: tuple[Array, Array], weight: Array) -> Any:
    return form(*rows, Norm(weight, 1e-5))


def head_squares_case(shape: GroupedAttention, rows: int) -> Case:
    values = rows * (shape.heads + shape.kv_heads) * shape.head_dim

    def example(seed: int) -> tuple[Array, ...]:
        keys = jax.random.split(jax.random.key(seed))
        return tuple(
            jax.random.normal(key, (rows, count * shape.head_dim), jnp.bfloat16)
            for key, count in zip(keys, (shape.heads, shape.kv_heads), strict=True)
        )

    return Case(
        **forms(HEAD_SQUARES),
        shape=shape.name,
        variant=f"rows{rows}",
        example=example,
        kernels=("head_squares",),
        bytes_moved=2 * values + 8 * rows,
        flops=2 * values,
        decode=rows <= 64,
    )


def router_logits_case(stack: ExpertStack, rows: int) -> Case:
    def example(seed: int) -> tuple[Array, Array]:
        keys = jax.random.split(jax.random.key(seed))
        x = jax.random.normal(keys[0], (rows, stack.hidden), jnp.bfloat16)
        return x, jax.random.normal(keys[1], (stack.hidden, stack.experts)) / stack.hidden**0.5

    return Case(
        **forms(ROUTER_LOGITS),
        shape=stack.name,
        variant=f"rows{rows}",
        example=example,
        kernels=("router_logits",),
        matrix=dict.fromkeys(AMD, "f32") | dict.fromkeys(NVIDIA, ""),
        bytes_moved=2 * rows * stack.hidden + 4 * stack.experts * (stack.hidden + rows),
        flops=2 * rows * stack.hidden * stack.experts,
        decode=rows <= 64,
        tolerance=1e-5,
    )
