"""Rows that a decode or verify step writes into Kimi's pools; the same on every device."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.cache_latents import pallas, reference
from pallas_kernels.case import Case
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.quantized import QuantFormat, QuantizedRows
from pallas_kernels.rms_norm import Norm
from pallas_kernels.shapes import DECODE_ROWS, LATENT_ATTENTION

PAGES, PAGE_SIZE, Q_LORA = 2048, 64, 1536
PTPC = QuantFormat("fp8_channel", "fp8_token")
SHAPE = LATENT_ATTENTION[0]
WIDTH = SHAPE.kv_lora + SHAPE.rope


def cases() -> list[Case]:
    """Every number of rows, bfloat16 and float8 pools, queries as they are and in float8."""
    return [
        _case(rows, fp8, q_format)
        for rows in DECODE_ROWS
        for fp8 in (False, True)
        for q_format in (None, PTPC)
    ]


def _case(rows: int, fp8: bool, q_format: QuantFormat | None) -> Case:
    return Case(
        operation="cache_latents",
        shape=SHAPE.name,
        variant=f"rows{rows}" + "_fp8" * fp8 + ("" if q_format is None else "_ptpc"),
        run=partial(_run, pallas.cache_latents, q_format),
        reference=partial(_run, _reference, q_format),
        example=partial(_example, rows, fp8),
        kernels=("cache_latents",),
        matrix={"gfx950": "", "gfx942": ""},
        bytes_moved=rows * (WIDTH * (3 if fp8 else 4) + 4 * Q_LORA),
        flops=4 * rows * (WIDTH + Q_LORA),
        decode=rows <= 64,
    )


def _reference(*arguments: Any, q_format: QuantFormat | None, **options: Any) -> Any:
    """With the queries as the product would quantise them."""
    pool, normed = reference.cache_latents(*arguments, **options)
    if q_format is None or normed is None:
        return pool, normed
    values, scale = quantize(normed.reshape(-1, Q_LORA))
    rows = normed.shape[:2]
    return pool, QuantizedRows(values.reshape(*rows, -1), scale.reshape(rows), normed.dtype)


def _run(
    operation: Any,
    q_format: QuantFormat | None,
    weight: Any,
    q_weight: Any,
    q_low: Any,
    *arrays: Any,
) -> Any:
    """operation with its norms made of their weights; arrays in its order, the scale last."""
    first, *rest, scale = arrays
    norms = Norm(weight, 1e-6), Norm(q_weight, 1e-6)
    options = {"q_low": q_low, "q_norm": norms[1], "q_format": q_format, "kv_scale": scale}
    return operation(first, norms[0], *rest, **options)


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
