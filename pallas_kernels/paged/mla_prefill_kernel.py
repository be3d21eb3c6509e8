"""GPU kernel of prefill with latents: expand the context's keys and values once, then attend.

Absorbed, a score and its value cost kv_lora + rope + kv_lora products a row; expanded, nope + rope
+ value, and once for all rows kv_lora * (nope + value). For Kimi: 1088 against 320 and 131,072. Key
blocks are counted from slot 0, so a row's bits do not depend on where its chunk begins.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Float

from pallas_kernels import gpu
from pallas_kernels.paged.kernel import (
    Keys,
    Softmax,
    add_keys,
    arrays_and_specs,
    context_length,
    no_softmax,
    of_sequence,
    padded,
    rows_at,
    slots_in_pool,
)
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.triton import dot, launch, load, store
from pallas_kernels.tuning import tuned

SLOTS, LATENTS = 64, 64
"""Slots of a program of the expansion; latent columns that it multiplies at a time."""


@dataclass(frozen=True)
class PrefillTiles:
    """Tile sizes: rows x keys scores that a program of one head computes at a time."""

    rows: int = 128
    keys: int = 32
    num_warps: int = 4
    num_stages: int = 2


def choose_tiles(heads: int, dtype: DTypeLike) -> PrefillTiles:
    """Choose tiles. 64 keys would halve CDNA's waves; NVIDIA GPUs have room for 64 with 8 warps."""
    amd = gpu.current().is_amd
    heuristic = (
        PrefillTiles() if amd or dtype == jnp.float32 else PrefillTiles(keys=64, num_warps=8)
    )
    return tuned("mla_prefill", f"heads {heads} {jnp.dtype(dtype)}", heuristic)


def launch_prefill(*operands: Any) -> Array:
    """Launch `mla_prefill`: the expansion, and the attention."""
    out = operands[-1].shape[2:], operands[0].dtype
    (attended,) = _launch(*operands, name="mla_prefill", outs=[out])
    return attended


def launch_prefill_part(*operands: Any) -> tuple[Array, Array]:
    """Launch `mla_prefill_part`: the expansion, and the attention with its mass."""
    outs = [(operands[-1].shape[2:], jnp.float32), ((), jnp.float32)]
    values, log_mass = _launch(*operands, name="mla_prefill_part", outs=outs)
    return values, log_mass


def _launch(
    q_nope: Array,
    q_rope: Array,
    paged: PagedKV,
    scale: float,
    key_kernel: Array,
    value_kernel: Array,
    *,
    name: str,
    outs: Sequence[tuple[tuple[int, ...], DTypeLike]],
) -> list[Array]:
    """Launch both kernels. `outs` are the shape and dtype of each row's results."""
    batch, q_len, heads, _ = q_nope.shape
    expanded = _expand(key_kernel, value_kernel, paged)
    tiles, (arrays, specs) = (
        choose_tiles(heads, q_nope.dtype),
        arrays_and_specs(paged, paged.flat_pools),
    )
    queries = [q.reshape(batch, q_len * heads, -1) for q in (q_nope, q_rope)]
    static = {"heads": heads, "page_size": paged.page_size, "scale": scale * math.log2(math.e)}
    shapes = [jax.ShapeDtypeStruct((batch, q_len * heads, *row), dtype) for row, dtype in outs]
    found = launch(
        partial(_attend, tiles=tiles, **static),
        name=name,
        grid=(pl.cdiv(q_len, tiles.rows), heads, batch),
        in_specs=([*map(of_sequence, queries)], [*map(_of_head, expanded)], *specs),
        out_specs=[*map(of_sequence, shapes)],
        out_shape=shapes,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )(queries, [*expanded], *arrays)
    return [array.reshape(batch, q_len, heads, *array.shape[2:]) for array in found]


def _attend(
    queries: Any,
    expanded: Any,
    pools: Any,
    scales: Any,
    table: Any,
    positions: Any,
    out: Any,
    *log_mass: Any,
    tiles: PrefillTiles,
    heads: int,
    page_size: int,
    scale: float,
) -> None:
    """Kernel body: attend a tile of one head's queries to all slots that they see.

    Grid: tiles of queries x heads x sequences. Blocks: queries [q_len * heads, nope] and [.., rope]
    and keys and values [slots, size] of a sequence, the pool whole as [slots, width] for the
    rotated part; [rows, keys] scores at a time. Limit: registers, 249 at 128 x 32, two waves a
    SIMD. Units: scores to the base 2, float32; log_mass [q_len * heads], if requested, the base-2
    logarithm of each row's mass.
    """
    (q_nope, q_rope), (keys, values), (pool,), (kv_scale,) = queries, expanded, pools, scales
    q_len, rope = positions.shape[0], q_rope.shape[1]
    query = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)
    is_row, row = query < q_len, query * heads + pl.program_id(1)
    position = load(positions.at[query], mask=is_row, other=-1)
    stop = jnp.minimum(jnp.max(position) + 1, context_length(table, positions, page_size))
    in_nope, in_rope, in_value = (
        jnp.arange(padded(size, 16)) for size in (q_nope.shape[1], rope, out.shape[1])
    )
    is_nope, is_rope, is_value = in_nope < q_nope.shape[1], in_rope < rope, in_value < out.shape[1]
    nope_query = rows_at(q_nope, row, in_nope, is_row, is_nope)
    rope_query = rows_at(q_rope, row, in_rope, is_row, is_rope)
    stored_scale = load(kv_scale)

    def add_block(index: Array, state: Softmax) -> Softmax:
        slot = index * tiles.keys + jnp.arange(tiles.keys)
        used = slot < stop
        at = slots_in_pool(table, slot, used, page_size)
        rotated = rows_at(pool, at, pool.shape[1] - rope + in_rope, used, is_rope)
        turned = dot(rope_query, rotated.astype(q_rope.dtype), trans_b=True) * stored_scale
        plain = dot(nope_query, rows_at(keys, slot, in_nope, used, is_nope), trans_b=True)
        seen = (slot[None, :] <= position[:, None]) & used[None, :]
        block = rows_at(values, slot, in_value, used, is_value)
        return add_keys(state, Keys((plain + turned) * scale, seen, block))

    state = no_softmax(tiles.rows, in_value.size)
    state = lax.fori_loop(0, pl.cdiv(stop, tiles.keys), add_block, state)
    mass = jnp.where(state.mass == 0, 1.0, state.mass)
    mean = state.total / mass[:, None]
    mask = is_row[:, None] & is_value[None, :]
    store(out.at[row[:, None], in_value[None, :]], mean.astype(out.dtype), mask=mask)
    for ref in log_mass:
        logs = jnp.where(state.mass == 0, -jnp.inf, state.peak + jnp.log2(mass))
        store(ref.at[row], logs, mask=is_row)


def _expand(
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
    paged: PagedKV,
) -> tuple[Float[Array, "batch heads slots nope"], Float[Array, "batch heads slots value"]]:
    """Return keys without rotated part, and values. Slots past a sequence's use are undefined."""
    (arrays, specs), kernels = arrays_and_specs(paged, paged.flat_pools), (key_kernel, value_kernel)
    batch, pages_per_seq = paged.page_table.shape
    heads, slots = key_kernel.shape[0], pages_per_seq * paged.page_size
    shapes = [(batch, heads, slots, kernel.shape[2]) for kernel in kernels]
    out = [jax.ShapeDtypeStruct(shape, key_kernel.dtype) for shape in shapes]
    keys, values = launch(
        partial(_expand_slots, page_size=paged.page_size),
        name="mla_prefill_expand",
        grid=(pl.cdiv(slots, SLOTS), heads, batch),
        in_specs=(tuple(map(_kernel_of_head, kernels)), *specs),
        out_specs=[*map(_of_head, out)],
        out_shape=out,
    )(kernels, *arrays)
    return keys, values


def _of_head(array: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
    """Return the spec of a program's own sequence and head in [batch, heads, ...]."""
    return pl.BlockSpec((None, None, *array.shape[2:]), lambda t, h, b: (b, h, 0, 0))


def _kernel_of_head(kernel: Array) -> pl.BlockSpec:
    return pl.BlockSpec((None, *kernel.shape[1:]), lambda t, h, b: (h, 0, 0))


def _expand_slots(
    kernels: Any, pools: Any, scales: Any, table: Any, positions: Any, *outs: Any, page_size: int
) -> None:
    """Kernel body: keys and values of one head for a tile of a sequence's slots.

    Grid: tiles of slots x heads x sequences. Blocks: both kernels [kv_lora, size] of the head, the
    pool whole as [slots, width]; [SLOTS, LATENTS] of the latents at a time. Limit: products;
    programs past the slots in use end at once. Units: stored numbers times kv_scale, results in the
    kernels' dtype.
    """
    slot = pl.program_id(0) * SLOTS + jnp.arange(SLOTS)
    length = context_length(table, positions, page_size)
    used = slot < length
    at = slots_in_pool(table, slot, used, page_size)
    (pool,), (kv_scale,), (kv_lora, _) = pools, scales, kernels[0].shape
    columns = [jnp.arange(padded(out.shape[1], 16)) for out in outs]
    insides = [column < out.shape[1] for column, out in zip(columns, outs, strict=True)]

    def add_latents(index: Array, totals: tuple[Array, Array]) -> tuple[Array, ...]:
        part = index * LATENTS + jnp.arange(LATENTS)
        is_part = part < kv_lora
        latents = rows_at(pool, at, part, used, is_part).astype(kernels[0].dtype)
        return tuple(
            total + dot(latents, rows_at(kernel, part, column, is_part, inside))
            for total, kernel, column, inside in zip(totals, kernels, columns, insides, strict=True)
        )

    @pl.when(pl.program_id(0) * SLOTS < length)
    def _() -> None:
        totals = tuple(jnp.zeros((SLOTS, column.size), jnp.float32) for column in columns)
        totals = lax.fori_loop(0, pl.cdiv(kv_lora, LATENTS), add_latents, totals)
        for out, total, column, inside in zip(outs, totals, columns, insides, strict=True):
            rows = (total * load(kv_scale)).astype(out.dtype)
            mask = used[:, None] & inside[None, :]
            store(out.at[slot[:, None], column[None, :]], rows, mask=mask)
