"""GPU kernel of grouped-query attention.

The rows of a program share one key-value head: they are the query heads of a group, q_len * heads /
kv_heads of them for each sequence.
"""

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from pallas_kernels.paged.context_part import (
    AttentionTiles,
    ContextPart,
    Slots,
    numbers_of,
    store_part,
)
from pallas_kernels.paged.kernel import in_dtype, padded, rows_at
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import attend_in_parts, merge
from pallas_kernels.paged.tile_walk import attend_to_part
from pallas_kernels.quantized import QuantFormat, QuantizedRows, Rows
from pallas_kernels.quantized.formats import BLOCK
from pallas_kernels.triton import dot, load
from pallas_kernels.tuning import tuned


def choose_tiles(
    rows: int, kv_heads: int, head_dim: int, dtype: DTypeLike, stored: DTypeLike
) -> AttentionTiles:
    """Choose tiles for groups of `rows` rows: q_len times the query heads of a key-value head.

    64 rows with 16 keys take fewer registers than 32 with 32, and no wave repeats another's scores.
    Many key-value heads fill the GPU with few context splits.
    """
    tile, keys = (16, 32) if rows <= 16 else (64, 16)
    heuristic = AttentionTiles(tile, keys, splits=8 if kv_heads >= 16 else 32, num_stages=2)
    key = f"rows {rows} kv_heads {kv_heads} head_dim {head_dim} {jnp.dtype(dtype)}"
    return tuned("gqa_decode", f"{key} in {jnp.dtype(stored)}", heuristic)


def launch_gqa(q: Array, paged: PagedKV, scale: float, *, then: QuantFormat | None = None) -> Rows:
    """Launch `gqa_decode`: the parts of each context, and their merge."""
    batch, q_len, heads, head_dim = q.shape
    kv_heads = paged.pools[0].shape[2]
    shared = heads // kv_heads
    tiles = choose_tiles(q_len * shared, kv_heads, head_dim, q.dtype, paged.pools[0].dtype)
    parts = attend_in_parts(
        partial(attend_part, shared=shared, scale=scale * math.log2(math.e)),
        name="gqa_decode",
        queries=(q.reshape(batch, -1, head_dim),),
        paged=paged,
        dim=head_dim,
        row_tiles=kv_heads * pl.cdiv(q_len * shared, tiles.rows),
        tiles=tiles,
    )
    if then is None or then.activations != "fp8_group" or head_dim != BLOCK:
        (merged,) = merge(*parts, name="gqa_decode_merge", dtype=q.dtype)
        return merged.reshape(batch, q_len, -1)
    merged = merge(*parts, name="gqa_decode_merge_fp8", dtype=q.dtype, fp8=True)
    values, factors = (array.reshape(batch, q_len, -1) for array in merged)
    return QuantizedRows(values, factors, q.dtype)


def attend_part(
    queries: Any, pools: Any, scales: Any, own: ContextPart, *, shared: int, scale: float
) -> None:
    """Kernel body: attend a tile of the rows of one key-value head to one part of the context.

    Grid: (kv heads x tiles of rows) x parts x sequences. Blocks: q [rows, head_dim] of a sequence,
    or [groups, rows, head_dim] where several devices have queries of one kv head, both pools whole
    as [pages, numbers]; [rows, keys] scores at a time. Limit: registers, 128 at 64 x 16, and
    reading the context once. Units: scores to the base 2, float32; out float32, log_mass the base-2
    logarithm of the part's mass.
    """
    (q,), (k_scale, v_scale), tiles = queries, scales, own.tiles
    (*devices, all_rows, head_dim), q_len = q.shape, own.positions.shape[0]
    rows, heads = math.prod(devices) * q_len * shared, all_rows // q_len
    row_tiles = pl.cdiv(rows, tiles.rows)
    group, tile = lax.div(pl.program_id(0), row_tiles), lax.rem(pl.program_id(0), row_tiles)
    in_group, in_head = tile * tiles.rows + jnp.arange(tiles.rows), jnp.arange(padded(head_dim, 16))
    is_row, is_column = in_group < rows, in_head < head_dim
    query = lax.div(in_group, shared)
    row = query * heads + group * shared + lax.rem(in_group, shared)
    # Rows of several devices are concatenated.
    query = lax.rem(query, q_len) if devices else query
    asked = rows_at(q, row, in_head, is_row, is_column)
    score_scale = scale * load(k_scale)

    def read(slots: Slots) -> tuple[Array, Array]:
        keys, values = (
            numbers_of(own, pool, slots, in_head, head_dim, group * head_dim) for pool in pools
        )
        return keys, values

    def score(tile: tuple[Array, Array]) -> tuple[Array, Array]:
        keys, values = (in_dtype(part, q.dtype) for part in tile)
        return dot(asked, keys, trans_b=True) * score_scale, values

    widened = pools[1].dtype != q.dtype
    state = attend_to_part(own, query, is_row, in_head.size, read, score, widened=widened)
    store_part(own, state, load(v_scale), row, is_row)
