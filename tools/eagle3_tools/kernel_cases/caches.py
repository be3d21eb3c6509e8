"""Cases of `cache_heads` (the drafts and MiniMax) and `cache_latents` (Kimi) in decode steps."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eagle3_tools.kernel_cases.case import Case, forms
from eagle3_tools.kernel_cases.shapes import (
    DECODE_ROWS,
    GROUPED_ATTENTION,
    LATENT_ATTENTION,
    GroupedAttention,
)
from pallas_kernels.cache_heads import CACHE_HEADS, HeadNorms, HeadRows
from pallas_kernels.cache_latents import CACHE_LATENTS, LatentRows
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.partial_sums import PartialSums, total
from pallas_kernels.quantized import QuantFormat, QuantizedRows
from pallas_kernels.rms_norm import Norm

PAGES, PAGE_SIZE, Q_LORA = 2048, 64, 1536
PTPC = QuantFormat("fp8_channel", "fp8_token")
HEAD_PARTS, LATENT_PARTS = 4, 14
"""Partial sums of products, as `joint_matmul` makes them on MI355X: of the draft's q, k and v at
TP 4, and of q_a and kv_a with up to 64 rows."""
MINIMAX_ROPE = 64
"""Rotated dimensions of MiniMax's heads, which have 128."""
LATENT = LATENT_ATTENTION[0]
WIDTH = LATENT.kv_lora + LATENT.rope


def cases() -> list[Case]:
    """Return cases of each device's heads, and of latents, which all devices have whole."""
    heads = [
        cache_heads_case(shape, rows, fp8)
        for shape in GROUPED_ATTENTION
        for rows in DECODE_ROWS
        for fp8 in (False, True)
    ]
    latents = [
        cache_latents_case(rows, fp8, q_format)
        for rows in DECODE_ROWS
        for fp8 in (False, True)
        for q_format in (None, PTPC)
    ]
    return heads + latents


def cache_heads_case(shape: GroupedAttention, rows: int, fp8: bool, pages: int = PAGES) -> Case:
    # The draft's products are partial sums. MiniMax's are summed before, because `head_squares`
    # reads them.
    read = 2 if shape.name.startswith("minimax") else 4 * HEAD_PARTS
    asked, kept = (rows * heads * shape.head_dim for heads in (shape.heads, shape.kv_heads))
    return Case(
        **forms(CACHE_HEADS, _cache_heads),
        shape=shape.name,
        variant=f"rows{rows}" + "_fp8" * fp8,
        example=partial(_heads_example, shape, rows, fp8, pages),
        kernels=("cache_heads",),
        bytes_moved=(read + 2) * asked + 2 * kept * (read + (1 if fp8 else 2)),
        flops=6 * (asked + kept),
        decode=rows <= 64,
    )


def _cache_heads(form: Any, norms: Any, *arrays: Any) -> Any:
    """Call it with both pools at one scale, and HeadNorms if their arrays are given."""
    *given, k_pool, v_pool, pages, offsets, scale = arrays
    if norms is not None:
        q, k, squares = norms
        norms = HeadNorms(Norm(q, 1e-6), Norm(k, 1e-6), squares, 1)
    rows = HeadRows._make([*given, pages, offsets, scale, scale, norms])
    return form(rows, k_pool, v_pool)


def _heads_example(
    shape: GroupedAttention, rows: int, fp8: bool, pages: int, seed: int
) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 6)
    minimax = shape.name.startswith("minimax")
    widths = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
    products = [
        example_parts(key, HEAD_PARTS, rows, width)
        for key, width in zip(keys, widths, strict=False)
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


def cache_latents_case(
    rows: int, fp8: bool, q_format: QuantFormat | None, pages: int = PAGES
) -> Case:
    return Case(
        operation="cache_latents",
        shape=LATENT.name,
        variant=f"rows{rows}" + "_fp8" * fp8 + ("" if q_format is None else "_ptpc"),
        run=partial(_cache_latents, CACHE_LATENTS.pallas, q_format),
        reference=partial(_cache_latents, _latents_reference, q_format),
        example=partial(_latents_example, rows, fp8, pages),
        kernels=("cache_latents",),
        bytes_moved=rows
        * (4 * LATENT_PARTS * (WIDTH + Q_LORA) + (1 if fp8 else 2) * WIDTH + 2 * Q_LORA),
        flops=4 * rows * (WIDTH + Q_LORA),
        decode=rows <= 64,
    )


def _latents_reference(rows: LatentRows, pool: Any, q_format: QuantFormat | None) -> Any:
    """Run the reference and quantise the queries as the following product would."""
    pool, normed = CACHE_LATENTS.reference(rows, pool, q_format)
    if q_format is None or normed is None:
        return pool, normed
    values, scale = quantize(normed.reshape(-1, Q_LORA))
    batch = normed.shape[:2]
    return pool, QuantizedRows(values.reshape(*batch, -1), scale.reshape(batch), normed.dtype)


def _cache_latents(
    form: Any, q_format: QuantFormat | None, weight: Any, q_weight: Any, *arrays: Any
) -> Any:
    """Call it with norms built from their weights."""
    q_low, compressed, cos, sin, pool, pages, offsets, scale = arrays
    norm, q_norm = Norm(weight, 1e-6), Norm(q_weight, 1e-6)
    rows = LatentRows(compressed, cos, sin, pages, offsets, norm, scale, q_low, q_norm)
    return form(rows, pool, q_format)


def example_parts(key: Array, parts: int, rows: int, width: int) -> PartialSums:
    """Return partial sums of a bfloat16 product whose elements have variance 1."""
    values = jax.random.normal(key, (parts, rows, 1, width)) * parts**-0.5
    return PartialSums(values, jnp.dtype(jnp.bfloat16))


def _latents_example(rows: int, fp8: bool, pages: int, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 3)
    angles = jax.random.uniform(keys[2], (rows, 1, LATENT.rope // 2), maxval=6.3)
    place = jax.random.permutation(keys[1], pages * PAGE_SIZE)[:rows, None]
    dtype = jnp.float8_e4m3fn if fp8 else jnp.bfloat16
    return (
        jnp.ones(LATENT.kv_lora, jnp.bfloat16),
        jnp.ones(Q_LORA, jnp.bfloat16),
        example_parts(keys[1], LATENT_PARTS, rows, Q_LORA),
        example_parts(keys[0], LATENT_PARTS, rows, WIDTH),
        jnp.cos(angles),
        jnp.sin(angles),
        jnp.zeros((pages, PAGE_SIZE, WIDTH), dtype),
        place // PAGE_SIZE,
        place % PAGE_SIZE,
        jnp.float32(0.25) if fp8 else None,
    )
