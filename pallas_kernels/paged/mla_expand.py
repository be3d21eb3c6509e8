"""Expansion of paged latents to keys and values of every head, for the slots in use."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.paged.kernel import (
    arrays_and_specs,
    context_length,
    padded,
    rows_at,
    slots_in_pool,
)
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.triton import dot, launch, load, store

SLOTS, LATENTS = 64, 64
"""Slots of a program; latent columns that it multiplies at a time."""


def expand(
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
        out_specs=[*map(of_head, out)],
        out_shape=out,
    )(kernels, *arrays)
    return keys, values


def of_head(array: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
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
