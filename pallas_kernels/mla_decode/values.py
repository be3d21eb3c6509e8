"""The parts of a context joined, and the latents that come out turned into each head's values."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.paged.kernel import LOWEST, padded, rows_at
from pallas_kernels.triton import dot, launch, load, store

QUERIES, LATENTS, TOGETHER = 16, 128, 4
"""Queries of a program, how much of their latents it multiplies at a time, and how many parts it
loads together: all of them at once spill."""


def merge_into_values(
    parts: Float[Array, "batch splits rows kv_lora"],
    log_mass: Float[Array, "batch splits rows"],
    value_kernel: Float[Array, "heads kv_lora value"],
    q_len: int,
) -> Float[Array, "batch q_len heads value"]:
    """What `merge` gives, rounded to the kernel's dtype, times value_kernel; one launch."""
    batch, splits, rows, kv_lora = parts.shape
    heads, _, value = value_kernel.shape
    return launch(
        partial(_merge_queries, splits=splits, heads=heads),
        name="mla_decode_values",
        grid=(heads, batch, pl.cdiv(q_len, QUERIES)),
        in_specs=[
            pl.BlockSpec((None, splits * rows, kv_lora), lambda h, b, t: (b, 0, 0)),
            pl.BlockSpec((None, splits * rows), lambda h, b, t: (b, 0)),
            pl.BlockSpec((None, kv_lora, value), lambda h, b, t: (h, 0, 0)),
        ],
        out_specs=pl.BlockSpec((None, q_len, None, value), lambda h, b, t: (b, 0, h, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, q_len, heads, value), value_kernel.dtype),
    )(
        parts.reshape(batch, splits * rows, kv_lora),
        log_mass.reshape(batch, splits * rows),
        value_kernel,
    )


def _merge_queries(
    parts: Any, log_mass: Any, value_kernel: Any, out: Any, *, splits: int, heads: int
) -> None:
    """The parts of a tile of queries of one head joined, times W_UV.

    Grid: heads x sequences x tiles of queries. Blocks: all parts of a sequence [splits * rows,
    kv_lora], W_UV [kv_lora, value] of the head; [QUERIES, LATENTS] of the mean at a time. Limit:
    registers, 142: TOGETHER parts are loaded at once. Units: float32 sums; logarithms to the base
    2.
    """
    q_len, (kv_lora, value) = out.shape[0], value_kernel.shape
    query = pl.program_id(2) * QUERIES + jnp.arange(QUERIES)
    is_query = query < q_len
    column, split = jnp.arange(padded(value, 16)), jnp.arange(splits)
    first, stride = query * heads + pl.program_id(0), q_len * heads
    logs = load(
        log_mass.at[split[None, :] * stride + first[:, None]],
        mask=is_query[:, None] & (split < splits)[None, :],
        other=-jnp.inf,
    )
    peak = jnp.maximum(jnp.max(logs, axis=1), LOWEST)
    mass = jnp.sum(_weights(logs, peak[:, None]), axis=1)
    mass = jnp.where(mass == 0, 1.0, mass)
    groups = pl.cdiv(jnp.max(jnp.where(logs == -jnp.inf, 0, split[None, :] + 1)), TOGETHER)

    def add_latents(index: Array, total: Array) -> Array:
        latent = index * LATENTS + jnp.arange(LATENTS)
        is_latent = latent < kv_lora

        def add_parts(group: Array, mean: Array) -> Array:
            for number in range(TOGETHER):
                split = group * TOGETHER + number
                row = split * stride + first
                log = load(log_mass.at[row], mask=is_query & (split < splits), other=-jnp.inf)
                values = rows_at(parts, row, latent, log != -jnp.inf, is_latent)
                mean += values * (_weights(log, peak) / mass)[:, None]
            return mean

        mean = jnp.zeros((QUERIES, LATENTS), jnp.float32)
        mean = lax.fori_loop(0, groups, add_parts, mean)
        matrix = rows_at(value_kernel, latent, column, is_latent, column < value)
        return total + dot(mean.astype(matrix.dtype), matrix)

    total = jnp.zeros((QUERIES, column.size), jnp.float32)
    total = lax.fori_loop(0, pl.cdiv(kv_lora, LATENTS), add_latents, total)
    mask = is_query[:, None] & (column < value)[None, :]
    store(out.at[query[:, None], column[None, :]], total.astype(out.dtype), mask=mask)


def _weights(logs: Array, peak: Array) -> Array:
    return jnp.where(logs != -jnp.inf, jnp.exp2(logs - peak), 0.0)
