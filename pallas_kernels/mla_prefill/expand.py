"""Keys and values of every head for the slots of paged latents that are in use."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.paged.kernel import context_length, padded, rows_at, slots_in_pool
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.triton import dot, launch, load, store, whole

SLOTS, LATENTS = 64, 64
"""Slots of a program, and how much of their latents it multiplies at a time."""


def expand(
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
    paged: PagedKV,
) -> tuple[Float[Array, "batch heads slots nope"], Float[Array, "batch heads slots value"]]:
    """Keys without their rotated part, and values; what lies past a sequence's use is not set."""
    (pool,), (factor,) = paged.flat_pools, paged.factors
    (batch, pages_per_seq), q_len = paged.page_table.shape, paged.positions.shape[1]
    heads, slots = key_kernel.shape[0], pages_per_seq * paged.page_size
    sizes = key_kernel.shape[2], value_kernel.shape[2]
    keys, values = launch(
        partial(_expand_slots, page_size=paged.page_size),
        name="mla_prefill_expand",
        grid=(pl.cdiv(slots, SLOTS), heads, batch),
        in_specs=[
            *(_of_head(kernel) for kernel in (key_kernel, value_kernel)),
            whole(pool),
            pl.BlockSpec((None,), lambda t, h, b: (0,)),
            pl.BlockSpec((None, pages_per_seq), lambda t, h, b: (b, 0)),
            pl.BlockSpec((None, q_len), lambda t, h, b: (b, 0)),
        ],
        out_specs=tuple(
            pl.BlockSpec((None, None, slots, size), lambda t, h, b: (b, h, 0, 0)) for size in sizes
        ),
        out_shape=tuple(
            jax.ShapeDtypeStruct((batch, heads, slots, size), key_kernel.dtype) for size in sizes
        ),
    )(key_kernel, value_kernel, pool, factor, paged.page_table, paged.positions)
    return keys, values


def _of_head(kernel: Array) -> pl.BlockSpec:
    return pl.BlockSpec((None, *kernel.shape[1:]), lambda t, h, b: (h, 0, 0))


def _expand_slots(
    key_kernel: Any,
    value_kernel: Any,
    pool: Any,
    kv_scale: Any,
    table: Any,
    positions: Any,
    keys: Any,
    values: Any,
    *,
    page_size: int,
) -> None:
    """Keys and values of one head for a tile of a sequence's slots.

    Grid: tiles of slots x heads x sequences. Blocks: both kernels [kv_lora, size] of the head, the
    pool whole as [slots, width]; [SLOTS, LATENTS] of the latents at a time. Limit: products;
    programs past the slots in use end at once. Units: stored numbers times kv_scale, results in the
    kernels' dtype.
    """
    slot = pl.program_id(0) * SLOTS + jnp.arange(SLOTS)
    length = context_length(table, positions, page_size)
    used = slot < length
    at = slots_in_pool(table, slot, used, page_size)
    kernels, outs = (key_kernel, value_kernel), (keys, values)
    columns = [jnp.arange(padded(out.shape[1], 16)) for out in outs]
    insides = [column < out.shape[1] for column, out in zip(columns, outs, strict=True)]

    def add_latents(index: Array, totals: tuple[Array, Array]) -> tuple[Array, ...]:
        part = index * LATENTS + jnp.arange(LATENTS)
        is_part = part < key_kernel.shape[0]
        latents = rows_at(pool, at, part, used, is_part).astype(key_kernel.dtype)
        return tuple(
            total + dot(latents, rows_at(kernel, part, column, is_part, inside))
            for total, kernel, column, inside in zip(totals, kernels, columns, insides, strict=True)
        )

    @pl.when(pl.program_id(0) * SLOTS < length)
    def _() -> None:
        totals = tuple(jnp.zeros((SLOTS, column.size), jnp.float32) for column in columns)
        totals = lax.fori_loop(0, pl.cdiv(key_kernel.shape[0], LATENTS), add_latents, totals)
        for out, total, column, inside in zip(outs, totals, columns, insides, strict=True):
            rows = (total * load(kv_scale)).astype(out.dtype)
            mask = used[:, None] & inside[None, :]
            store(out.at[slot[:, None], column[None, :]], rows, mask=mask)
