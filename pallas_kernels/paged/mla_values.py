"""Merge of context parts, followed by the product of latents with each head's W_UV."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.paged.kernel import LOWEST, load_where, padded
from pallas_kernels.triton import dot, launch, load, store

QUERIES, LATENTS, NUMBERS = 16, 128, 16384
"""Queries of a program; latent columns multiplied at a time; most numbers of all parts in such a
step, which are loaded together."""


def merge_into_values(
    parts: Float[Array, "batch splits rows kv_lora"],
    log_mass: Float[Array, "batch splits rows"],
    value_kernel: Float[Array, "heads kv_lora value"],
    q_len: int,
) -> Float[Array, "batch q_len heads value"]:
    """Merge parts, round to the kernel's dtype and multiply by value_kernel, in one launch."""
    batch, splits, rows, kv_lora = parts.shape
    heads, _, value = value_kernel.shape
    return launch(
        partial(_merge_queries, splits=splits, heads=heads),
        name="mla_decode_values",
        grid=(heads, batch, pl.cdiv(q_len, min(QUERIES, padded(q_len)))),
        in_specs=[
            pl.BlockSpec((None, splits * rows, kv_lora), lambda h, b, t: (b, 0, 0)),
            pl.BlockSpec((None, splits * rows), lambda h, b, t: (b, 0)),
            pl.BlockSpec((None, kv_lora, value), lambda h, b, t: (h, 0, 0)),
        ],
        out_specs=pl.BlockSpec((None, q_len, None, value), lambda h, b, t: (b, 0, h, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, q_len, heads, value), value_kernel.dtype),
        # Overlapped loads take local memory; other GPUs have too little for both.
        num_stages=2 if gpu.current().arch == "gfx950" else 1,
    )(
        parts.reshape(batch, splits * rows, kv_lora),
        log_mass.reshape(batch, splits * rows),
        value_kernel,
    )


def _merge_queries(
    parts: Any, log_mass: Any, value_kernel: Any, out: Any, *, splits: int, heads: int
) -> None:
    """Kernel body: merge the parts of a tile of one head's queries and multiply by W_UV.

    Grid: heads x sequences x tiles of queries. Blocks: all parts of a sequence [splits * rows,
    kv_lora], W_UV [kv_lora, value] of the head; [splits, queries, latents] at a time. Limit: loads
    in flight, NUMBERS of parts. Units: float32 sums; logarithms to the base 2.
    """
    q_len, (kv_lora, value) = out.shape[0], value_kernel.shape
    queries = min(QUERIES, padded(q_len))
    latents = max(16, min(LATENTS, padded(kv_lora, 16), NUMBERS // (queries * splits)))
    query = pl.program_id(2) * queries + jnp.arange(queries)
    column, split = jnp.arange(padded(value, 16)), jnp.arange(splits)
    # Loads of parts are never masked: AMD GPUs would branch and wait. A missing part is replaced by
    # the first part of the last query with weight 0.
    is_column = None if column.size == value else (column < value)[None, :]
    first = (jnp.minimum(query, q_len - 1) * heads + pl.program_id(0))[None, :]
    stride = q_len * heads
    logs = load(log_mass.at[split[:, None] * stride + first])
    exists = logs != -jnp.inf
    peak = jnp.maximum(jnp.max(logs, axis=0), LOWEST)
    weights = jnp.where(exists, jnp.exp2(logs - peak[None, :]), 0.0)
    mass = jnp.sum(weights, axis=0)
    weights /= jnp.where(mass == 0, 1.0, mass)[None, :]
    row = jnp.where(exists, split[:, None], 0) * stride + first

    def add_latents(index: Array, total: Array) -> Array:
        latent = index * latents + jnp.arange(latents)
        is_latent = None if kv_lora % latents == 0 else latent < kv_lora
        kept = None if is_latent is None else is_latent[None, None, :]
        values = load_where(parts, (row[:, :, None], latent[None, None, :]), kept)
        mean = jnp.sum(jnp.where(exists[:, :, None], values * weights[:, :, None], 0.0), axis=0)
        # A product has at least 16 rows.
        mean = jnp.broadcast_to(mean[:, None, :], (queries, QUERIES // queries, latents))
        inside = None if is_latent is None else is_latent[:, None]
        place = latent[:, None], column[None, :]
        matrix = load_where(value_kernel, place, inside, is_column)
        return total + dot(mean.reshape(QUERIES, latents).astype(matrix.dtype), matrix)

    total = jnp.zeros((QUERIES, column.size), jnp.float32)
    total = lax.fori_loop(0, pl.cdiv(kv_lora, latents), add_latents, total)
    copy = jnp.arange(QUERIES)
    query = pl.program_id(2) * queries + lax.div(copy, QUERIES // queries)
    is_query = (lax.rem(copy, QUERIES // queries) == 0) & (query < q_len)
    # In interpreted mode, a masked store rewrites the old value: keep it off places that are
    # written.
    query = jnp.where(is_query, query, q_len)
    mask = is_query[:, None] & (column < value)[None, :]
    store(out.at[query[:, None], column[None, :]], total.astype(out.dtype), mask=mask)
