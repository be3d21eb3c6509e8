"""GPU kernel of latent attention: a row of the pool is read once, as key and as value.

Rotated part and latent part are two products, because block sizes are powers of two. The
accumulator of rows x kv_lora float32 fills the registers.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Float

from pallas_kernels import gpu
from pallas_kernels.dispatch import asks_for_exact_bits
from pallas_kernels.paged.context_part import (
    AttentionTiles,
    ContextPart,
    Slots,
    numbers_of,
    store_part,
)
from pallas_kernels.paged.kernel import LOWEST, in_dtype, load_where, padded, rows_at
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import (
    LEAST_SPLIT,
    attend_in_parts,
    exact_parts,
    merge,
    parts_that_fill,
)
from pallas_kernels.paged.tile_walk import attend_to_part
from pallas_kernels.triton import dot, launch, load, store
from pallas_kernels.tuning import tuned

QUERIES, LATENTS, NUMBERS = 16, 128, 16384
"""In the merge: queries of a program; latent columns multiplied at a time; most numbers of all
parts in such a step, which are loaded together."""


def choose_tiles(
    batch: int, rows: int, kv_lora: int, dtype: DTypeLike, paged: PagedKV
) -> AttentionTiles:
    """Choose tiles for `batch` sequences of `rows` rows: q_len times heads.

    With 16 keys a step, 64 rows fit CDNA's registers and no wave repeats another's scores; 32 keys
    spill. NVIDIA GPUs have room for 32 keys of one page, but not for 64 rows if keys are widened in
    registers or a tree's mask is loaded. AMD GPUs have registers left for the next two tiles. On
    gfx950, Triton overlaps two tiles that are taken together, which fit its local memory. On gfx942
    they stay in registers: two together, or one at a time up to 16 rows and beyond 256, where two
    spill (`docs/kernels.md`). Up to 16 rows on gfx950 instead share a compute unit with another
    program.
    """
    amd, twice = gpu.current().is_amd, gpu.current().arch == "gfx950"
    crowded = paged.pools[0].dtype.itemsize == 1 or paged.ancestors is not None
    tile = min(padded(rows, 16), 64 if amd or not crowded else 32)
    if dtype == jnp.float32:
        heuristic = AttentionTiles(16, 16, num_stages=2)
    elif amd and not twice and not crowded and paged.page_size % 16 == 0:
        group, ahead = (2, 1) if 16 < rows <= 256 else (1, 2)
        heuristic = AttentionTiles(tile, 16, group=group, ahead=ahead)
    elif amd:
        together = twice and tile > 16 and not crowded and paged.page_size % 16 == 0
        heuristic = AttentionTiles(tile, 16, num_stages=2, group=2 if together else 1)
    else:
        keys = 32 if paged.page_size % 32 == 0 else 16
        heuristic = AttentionTiles(tile, keys, num_warps=4 if tile == 16 else 8, num_stages=2)
    stored = paged.pools[0].dtype
    key = f"rows {rows} kv_lora {kv_lora} page {paged.page_size} {jnp.dtype(dtype)} in {stored}"
    key += " tree" if paged.ancestors is not None else ""
    if asks_for_exact_bits():
        return tuned("mla_decode", key, replace(heuristic, splits=exact_parts(rows)))
    # Two programs of few rows share a compute unit.
    programs = batch * pl.cdiv(rows, heuristic.rows)
    splits = parts_that_fill(programs if heuristic.rows > 16 else pl.cdiv(programs, 2))
    heuristic = replace(heuristic, splits=splits, least_split=LEAST_SPLIT)
    return tuned("mla_decode", f"batch {batch} {key}", heuristic)


def launch_mla(
    q_latent: Array,
    q_rope: Array,
    paged: PagedKV,
    scale: float,
    *,
    value_kernel: Array | None = None,
) -> Array:
    """Launch `mla_decode`: the parts of each context, and their merge."""
    batch, q_len, heads, kv_lora = q_latent.shape
    rows = q_len * heads
    tiles = choose_tiles(batch, rows, kv_lora, q_latent.dtype, paged)
    parts = attend_in_parts(
        partial(attend_part, q_len=q_len, heads=heads, scale=scale * math.log2(math.e)),
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


def attend_part(
    queries: Any,
    pools: Any,
    scales: Any,
    own: ContextPart,
    *,
    q_len: int,
    heads: int,
    scale: float,
    store_rows: Callable[..., None] = store_part,
) -> None:
    """Kernel body: attend a tile of a sequence's rows to one part of its context.

    `store_rows` stores the result. Grid: tiles of rows x parts x sequences. Blocks: queries [rows,
    kv_lora] and [rows, rope] of a sequence, or [groups, rows, _] where several devices have
    queries, the pool whole as [pages, numbers]; [rows, keys] scores at a time. Limit: registers:
    the sums [rows, kv_lora] are float32, 360 registers at 64 x 16, one wave a SIMD. Units: scores
    to the base 2, float32; out float32, log_mass the base-2 logarithm of the part's mass.
    """
    (q_latent, q_rope), (pool,), (kv_scale,) = queries, pools, scales
    (*groups, rows, kv_lora), rope = q_latent.shape, q_rope.shape[-1]
    rows *= math.prod(groups)
    row = pl.program_id(0) * own.tiles.rows + jnp.arange(own.tiles.rows)
    in_latent, in_rope = jnp.arange(padded(kv_lora, 16)), jnp.arange(padded(rope, 16))
    is_row, is_latent, is_rope = row < rows, in_latent < kv_lora, in_rope < rope
    latent_query = rows_at(q_latent, row, in_latent, is_row, is_latent)
    rope_query = rows_at(q_rope, row, in_rope, is_row, is_rope)
    stored_scale = load(kv_scale)

    def read(slots: Slots) -> tuple[Array, ...]:
        latent = numbers_of(own, pool, slots, in_latent, kv_lora)
        rotated = numbers_of(own, pool, slots, in_rope, rope, kv_lora)
        if own.tiles.ahead:
            return rotated, latent
        return rotated, latent, _as_values(latent, own, pool, slots, in_latent, kv_lora)

    def score(tile: tuple[Array, ...]) -> tuple[Array, Array]:
        rotated, latent, *again = (in_dtype(part, q_latent.dtype) for part in tile)
        scores = dot(latent_query, latent, trans_b=True) + dot(rope_query, rotated, trans_b=True)
        return scores * (scale * stored_scale), again[0] if again else latent

    query, widened = lax.div(row, heads), pool.dtype != q_latent.dtype
    query = lax.rem(query, q_len) if groups else query
    state = attend_to_part(own, query, is_row, in_latent.size, read, score, widened=widened)
    store_rows(own, state, stored_scale, row, is_row)


def _as_values(
    latent: Array, own: ContextPart, pool: Any, slots: Slots, in_latent: Array, kv_lora: int
) -> Array:
    """Load the latents again for the second product, on gfx950 only.

    On AMD GPUs, Triton keeps a load in flight during the previous step only if a single product
    uses it. So each product has its own load; they differ only in a cache hint, and gfx950's
    machine code has one load. gfx942's would have both, one after the other.
    """
    if gpu.current().arch != "gfx950":
        return latent
    return numbers_of(own, pool, slots, in_latent, kv_lora, hint="evict_last")


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
