"""Rows that a decode or verify step writes into Kimi's pools; the same on every device."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.cache_latents import pallas, reference
from pallas_kernels.case import Case
from pallas_kernels.rms_norm import Norm
from pallas_kernels.shapes import DECODE_ROWS, LATENT_ATTENTION

PAGES, PAGE_SIZE, Q_LORA = 2048, 64, 1536
SHAPE = LATENT_ATTENTION[0]
WIDTH = SHAPE.kv_lora + SHAPE.rope


def cases() -> list[Case]:
    """Every number of rows, bfloat16 and float8 pools."""
    return [_case(rows, fp8=fp8) for rows in DECODE_ROWS for fp8 in (False, True)]


def _case(rows: int, *, fp8: bool) -> Case:
    return Case(
        operation="cache_latents",
        shape=SHAPE.name,
        variant=f"rows{rows}" + "_fp8" * fp8,
        run=partial(_run, pallas.cache_latents),
        reference=partial(_run, reference.cache_latents),
        example=partial(_example, rows, fp8),
        kernels=("cache_latents",),
        matrix={"gfx950": "", "gfx942": ""},
        bytes_moved=rows * (WIDTH * (3 if fp8 else 4) + 4 * Q_LORA),
        flops=4 * rows * (WIDTH + Q_LORA),
        decode=rows <= 64,
    )


def _run(operation: Any, weight: Any, q_weight: Any, q_low: Any, *arrays: Any) -> Any:
    first, *rest, scale = arrays
    norms = Norm(weight, 1e-6), Norm(q_weight, 1e-6)
    return operation(first, norms[0], *rest, q_low=q_low, q_norm=norms[1], kv_scale=scale)


def _example(rows: int, fp8: bool, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 3)
    angles = jax.random.uniform(keys[2], (rows, 1, SHAPE.rope // 2), maxval=6.3)
    place = jax.random.permutation(keys[1], PAGES * PAGE_SIZE)[:rows, None]
    dtype = jnp.float8_e4m3fn if fp8 else jnp.bfloat16
    return (
        jnp.ones(SHAPE.kv_lora, jnp.bfloat16),
        jnp.ones(Q_LORA, jnp.bfloat16),
        jax.random.normal(keys[1], (rows, 1, Q_LORA), jnp.bfloat16),
        jax.random.normal(keys[0], (rows, 1, WIDTH), jnp.bfloat16),
        jnp.cos(angles),
        jnp.sin(angles),
        jnp.zeros((PAGES, PAGE_SIZE, WIDTH), dtype),
        place // PAGE_SIZE,
        place % PAGE_SIZE,
        jnp.float32(0.25) if fp8 else None,
    )
