"""Cases of `cache_latents`: decode and verify steps of Kimi; the same on every device."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.cache_latents import pallas, reference
from pallas_kernels.cache_latents.rows import LatentRows
from pallas_kernels.case import Case
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.partial_sums import PartialSums
from pallas_kernels.quantized import QuantFormat, QuantizedRows
from pallas_kernels.rms_norm import Norm
from pallas_kernels.shapes import DECODE_ROWS, LATENT_ATTENTION

PAGES, PAGE_SIZE, Q_LORA = 2048, 64, 1536
PTPC = QuantFormat("fp8_channel", "fp8_token")
PARTS = 14
"""Partial sums of q_a and kv_a, as `joint_matmul` makes them of up to 64 rows on MI355X."""
SHAPE = LATENT_ATTENTION[0]
WIDTH = SHAPE.kv_lora + SHAPE.rope


def cases() -> list[Case]:
    return [
        make_case(rows, fp8, q_format)
        for rows in DECODE_ROWS
        for fp8 in (False, True)
        for q_format in (None, PTPC)
    ]


def make_case(rows: int, fp8: bool, q_format: QuantFormat | None, pages: int = PAGES) -> Case:
    return Case(
        operation="cache_latents",
        shape=SHAPE.name,
        variant=f"rows{rows}" + "_fp8" * fp8 + ("" if q_format is None else "_ptpc"),
        run=partial(_run, pallas.cache_latents, q_format),
        reference=partial(_run, _reference, q_format),
        example=partial(_example, rows, fp8, pages),
        kernels=("cache_latents",),
        bytes_moved=rows * (4 * PARTS * (WIDTH + Q_LORA) + (1 if fp8 else 2) * WIDTH + 2 * Q_LORA),
        flops=4 * rows * (WIDTH + Q_LORA),
        decode=rows <= 64,
    )


def _reference(rows: LatentRows, pool: Any, q_format: QuantFormat | None) -> Any:
    """Run the reference and quantise the queries as the following product would."""
    pool, normed = reference.cache_latents(rows, pool, q_format)
    if q_format is None or normed is None:
        return pool, normed
    values, scale = quantize(normed.reshape(-1, Q_LORA))
    batch = normed.shape[:2]
    return pool, QuantizedRows(values.reshape(*batch, -1), scale.reshape(batch), normed.dtype)


def _run(
    operation: Any, q_format: QuantFormat | None, weight: Any, q_weight: Any, *arrays: Any
) -> Any:
    """Call `operation` with norms built from their weights."""
    q_low, compressed, cos, sin, pool, pages, offsets, scale = arrays
    norm, q_norm = Norm(weight, 1e-6), Norm(q_weight, 1e-6)
    rows = LatentRows(compressed, cos, sin, pages, offsets, norm, scale, q_low, q_norm)
    return operation(rows, pool, q_format)


def example_parts(key: Array, parts: int, rows: int, width: int) -> PartialSums:
    """Return partial sums of a bfloat16 product whose elements have variance 1."""
    values = jax.random.normal(key, (parts, rows, 1, width)) * parts**-0.5
    return PartialSums(values, jnp.dtype(jnp.bfloat16))


def _example(rows: int, fp8: bool, pages: int, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 3)
    angles = jax.random.uniform(keys[2], (rows, 1, SHAPE.rope // 2), maxval=6.3)
    place = jax.random.permutation(keys[1], pages * PAGE_SIZE)[:rows, None]
    dtype = jnp.float8_e4m3fn if fp8 else jnp.bfloat16
    return (
        jnp.ones(SHAPE.kv_lora, jnp.bfloat16),
        jnp.ones(Q_LORA, jnp.bfloat16),
        example_parts(keys[1], PARTS, rows, Q_LORA),
        example_parts(keys[0], PARTS, rows, WIDTH),
        jnp.cos(angles),
        jnp.sin(angles),
        jnp.zeros((pages, PAGE_SIZE, WIDTH), dtype),
        place // PAGE_SIZE,
        place % PAGE_SIZE,
        jnp.float32(0.25) if fp8 else None,
    )
