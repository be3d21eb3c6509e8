"""Cases of `absorb_query`: decode and verify steps with each device's part of Kimi's heads."""

import jax
import jax.numpy as jnp

from pallas_kernels.absorb_query import pallas, reference
from pallas_kernels.case import ARCHS, Case
from pallas_kernels.shapes import DECODE_ROWS, LATENT_ATTENTION, LatentAttention

NOPE = 128


def cases() -> list[Case]:
    return [make_case(shape, rows) for shape in LATENT_ATTENTION for rows in DECODE_ROWS]


def make_case(shape: LatentAttention, rows: int) -> Case:
    weights = shape.heads * shape.kv_lora * NOPE
    moved = rows * shape.heads * (NOPE + shape.kv_lora + 2 * shape.rope)

    def example(seed: int) -> tuple[jax.Array, ...]:
        keys = jax.random.split(jax.random.key(seed), 3)
        angles = jax.random.uniform(keys[2], (rows, 1, shape.rope // 2), maxval=6.3)
        return (
            jax.random.normal(keys[0], (rows, 1, shape.heads, NOPE + shape.rope), jnp.bfloat16),
            jax.random.normal(keys[1], (shape.heads, shape.kv_lora, NOPE), jnp.bfloat16) / 8,
            jnp.cos(angles),
            jnp.sin(angles),
        )

    return Case(
        operation="absorb_query",
        shape=shape.name,
        variant=f"rows{rows}",
        run=pallas.absorb_query,
        reference=reference.absorb_query,
        example=example,
        kernels=("absorb_query",),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=2 * (weights + moved),
        flops=2 * rows * weights,
        decode=rows <= 64,
    )
