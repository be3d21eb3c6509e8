"""Paged latent attention on a GPU: a row of the pool is read once, as key and as value.

Rotated and latent part are two products, since blocks are powers of two. The accumulator of
rows x kv_lora float32 is what fills the registers.
"""

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.mla_decode.values import merge_into_values
from pallas_kernels.paged.kernel import Softmax, add_keys, padded, rows_at
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import (
    AttentionTiles,
    ContextPart,
    attend_in_parts,
    attend_to_part,
    leave,
    merge,
)
from pallas_kernels.triton import dot, load
from pallas_kernels.tuning import tuned

PARTS = ((16, 32), (64, 16), (128, 8), (2048, 4))
"""Up to so many rows of a sequence, its context has at most so many parts."""


def choose_tiles(rows: int, kv_lora: int, dtype: DTypeLike) -> AttentionTiles:
    """For a sequence of so many rows: q_len times heads.

    With 16 keys a step, 64 rows fit the registers of CDNA and no wave repeats another's scores;
    with 32 keys they spill. NVIDIA GPUs have room for 32 keys (`docs/kernels.md`).
    What a part leaves is rows x kv_lora float32, written and read again: fewer parts of more rows.
    A prompt's chunk fills the GPU by itself.
    """
    splits = next((parts for limit, parts in PARTS if rows <= limit), 1)
    tile = min(padded(rows, 16), 64)
    if dtype == jnp.float32:
        heuristic = AttentionTiles(16, 16, splits, num_stages=2)
    elif gpu.current().arch in gpu.KNOWN:
        heuristic = AttentionTiles(tile, 16, splits, num_stages=2)
    else:
        heuristic = AttentionTiles(tile, 32, splits, num_warps=4 if tile == 16 else 8, num_stages=2)
    return tuned("mla_decode", f"rows {rows} kv_lora {kv_lora} {jnp.dtype(dtype)}", heuristic)


def mla_decode(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    value_kernel: Float[Array, "heads kv_lora value"] | None = None,
) -> Float[Array, "batch q_len heads _"]:
    """See `pallas_kernels.mla_decode.api.mla_decode`."""
    batch, q_len, heads, kv_lora = q_latent.shape
    rows = q_len * heads
    tiles = choose_tiles(rows, kv_lora, q_latent.dtype)
    parts = attend_in_parts(
        partial(_attend_part, heads=heads, scale=scale * math.log2(math.e)),
        name="mla_decode",
        queries=(q_latent.reshape(batch, rows, -1), q_rope.reshape(batch, rows, -1)),
        paged=paged,
        dim=kv_lora,
        row_tiles=pl.cdiv(rows, tiles.rows),
        tiles=tiles,
    )
    if value_kernel is not None:
        return merge_into_values(*parts, value_kernel, q_len)
    (out,) = merge(*parts, name="mla_decode_merge", dtype=q_latent.dtype)
    return out.reshape(q_latent.shape)


def _attend_part(
    queries: Any, pools: Any, scales: Any, own: ContextPart, *, heads: int, scale: float
) -> None:
    """A tile of a sequence's rows, attended to one part of its context.

    Grid: tiles of rows x parts x sequences. Blocks: queries [rows, kv_lora] and [rows, rope] of a
    sequence, the pool whole as [slots, width]; [rows, keys] scores at a time. Limit: registers: the
    sums [rows, kv_lora] are float32, 380 registers at 64 x 16, one wave a SIMD. Units: scores to
    the base 2, float32; out float32, log_mass the logarithm to the base 2 of the part's mass.
    """
    (q_latent, q_rope), (pool,), (kv_scale,) = queries, pools, scales
    (rows, kv_lora), rope = q_latent.shape, q_rope.shape[1]
    row = pl.program_id(0) * own.tiles.rows + jnp.arange(own.tiles.rows)
    in_latent, in_rope = jnp.arange(padded(kv_lora, 16)), jnp.arange(padded(rope, 16))
    is_row, is_latent, is_rope = row < rows, in_latent < kv_lora, in_rope < rope
    latent_query = rows_at(q_latent, row, in_latent, is_row, is_latent)
    rope_query = rows_at(q_rope, row, in_rope, is_row, is_rope)
    stored_scale = load(kv_scale)

    def add_slots(at: Array, used: Array, seen: Array, state: Softmax) -> Softmax:
        latent = rows_at(pool, at, in_latent, used, is_latent).astype(q_latent.dtype)
        rotated = rows_at(pool, at, kv_lora + in_rope, used, is_rope).astype(q_rope.dtype)
        scores = dot(latent_query, latent, trans_b=True) + dot(rope_query, rotated, trans_b=True)
        return add_keys(state, scores * (scale * stored_scale), seen, latent)

    state = attend_to_part(own, lax.div(row, heads), is_row, in_latent.size, add_slots)
    leave(own, state, stored_scale, row, is_row)
