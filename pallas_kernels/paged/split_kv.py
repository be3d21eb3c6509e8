"""Attention of a few rows to long contexts on a GPU: split the context, then merge the parts.

The rows of a sequence are its queries' heads. A program attends a tile of them to one part of the
context and stores the result and its log mass; a second kernel merges the parts. The splits of a
context depend on its own length alone, so that neither a neighbour nor the width of the table
changes a row's bits.

A part writes rows x kv_lora float32 numbers that are read again: as much as the pool's rows of
twice as many slots as it has rows. So there are as many parts as fill the GPU, and no more.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.fp8_matmul.quantize import to_fp8_runs
from pallas_kernels.paged.context_part import AttentionTiles, ContextPart
from pallas_kernels.paged.kernel import LOWEST, arrays_and_specs, of_sequence, padded, rows_at
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.triton import launch, load, store

COMPUTE_UNITS = {"gfx950": 256, "gfx942": 304}
"""Compute units of MI355X and MI325X; other GPUs count as an H200."""
_COMPUTE_UNITS = 132

MOST_PARTS, LEAST_SPLIT = 32, 128
"""The merge kernel loads all parts of a row at once. A part of fewer than LEAST_SPLIT slots takes
less time than its start and end."""

_EXACT_PARTS = ((16, 32), (64, 16), (128, 8), (2048, 4))
"""(rows, parts): a sequence of up to `rows` rows has a context of at most `parts` parts."""


def parts_that_fill(programs: int) -> int:
    """Return the parts of a context, a power of two, that fill the GPU with `programs` a part."""
    units = COMPUTE_UNITS.get(gpu.current().arch, _COMPUTE_UNITS)
    parts = max(1, min(units // programs, MOST_PARTS))
    return 1 << (parts.bit_length() - 1)


def exact_parts(rows: int) -> int:
    """Return the parts of each context by its own rows, so that bits do not depend on the batch."""
    return next((parts for limit, parts in _EXACT_PARTS if rows <= limit), 1)


def refuse(query: Array, *operands: Any, **_: Any) -> str | None:
    """Return why a kernel cannot attend the query to the `PagedKV` among the operands, or None if
    it can. Without a PagedKV, the query alone decides."""
    arch = gpu.current().arch
    if gpu.current().is_amd and arch not in gpu.KNOWN:
        return f"expected {', '.join(gpu.KNOWN)} or another NVIDIA GPU, got {arch}"
    if query.dtype not in (jnp.bfloat16, jnp.float32):
        return f"expected queries of bfloat16 or float32, got {query.dtype}"
    for pool in (pool for one in operands if isinstance(one, PagedKV) for pool in one.pools):
        if pool.dtype not in (query.dtype, jnp.float8_e4m3fn):
            return f"expected a pool of {query.dtype} or float8_e4m3fn, got {pool.dtype}"
    return None


def attend_in_parts(
    kernel: Callable[..., None],
    *,
    name: str,
    queries: Sequence[Float[Array, "*groups batch rows _"]],
    paged: PagedKV,
    dim: int,
    row_tiles: int,
    tiles: AttentionTiles,
) -> tuple[Float[Array, "batch splits all_rows dim"], Float[Array, "batch splits all_rows"]]:
    """Run `kernel` for each (row tile, part, sequence); return the attention and log2 mass of each.

    kernel(queries, pools, scales, own) takes refs and a ContextPart. Rows of several groups are
    concatenated in the results.
    """
    *groups, batch, rows, _ = queries[0].shape
    rows *= math.prod(groups)
    parts, log_mass = launch_parts(
        kernel,
        name=name,
        queries=queries,
        paged=paged,
        row_tiles=row_tiles,
        tiles=tiles,
        out_specs=(
            pl.BlockSpec((None, None, rows, dim), lambda t, s, b: (b, s, 0, 0)),
            pl.BlockSpec((None, None, rows), lambda t, s, b: (b, s, 0)),
        ),
        out_shape=(
            jax.ShapeDtypeStruct((batch, tiles.splits, rows, dim), jnp.float32),
            jax.ShapeDtypeStruct((batch, tiles.splits, rows), jnp.float32),
        ),
    )
    return parts, log_mass


def launch_parts(
    kernel: Callable[..., None],
    *,
    name: str,
    queries: Sequence[Float[Array, "*groups batch rows _"]],
    paged: PagedKV,
    row_tiles: int,
    tiles: AttentionTiles,
    out_specs: Sequence[pl.BlockSpec],
    out_shape: Sequence[jax.ShapeDtypeStruct],
) -> Sequence[Array]:
    """Launch the kernel of `attend_in_parts` for each (row tile, part, sequence)."""
    ancestors = paged.ancestors
    nodes = 0 if ancestors is None else ancestors.shape[-1]
    # Without a tree the mask is never read; passing an existing array avoids a launch to create
    # one.
    mask = paged.positions if ancestors is None else ancestors.astype(jnp.int8)
    arrays, specs = arrays_and_specs(paged, paged.page_pools)

    def program(*refs: Any) -> None:
        own = ContextPart(paged.page_size, nodes, tiles, *refs[3:])
        kernel(*refs[:3], own)

    return launch(
        program,
        name=name,
        grid=(row_tiles, tiles.splits, queries[0].shape[-3]),
        in_specs=(jax.tree.map(of_groups, queries), *specs, of_sequence(mask)),
        out_specs=out_specs,
        out_shape=out_shape,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )(queries, *arrays, mask)


def of_groups(array: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
    """Return the spec of a program's own sequence in [*groups, batch, rows, dim]."""
    *groups, _, rows, dim = array.shape
    zeros = (0,) * len(groups)
    return pl.BlockSpec((*groups, None, rows, dim), lambda t, s, b: (*zeros, b, 0, 0))


def merge(
    parts: Float[Array, "batch splits rows dim"],
    log_mass: Float[Array, "batch splits rows"],
    *,
    name: str,
    dtype: DTypeLike,
    fp8: bool = False,
) -> Sequence[Float[Array, "batch rows _"]]:
    """Merge the parts of each row to [batch, rows, dim] in `dtype`, skipping parts without visible
    slots. fp8: return the GPU's float8 and one scale for each row, [batch, rows, 1]."""
    batch, splits, rows, dim = parts.shape
    outs = [(dim, gpu.current().fp8), (1, jnp.float32)] if fp8 else [(dim, dtype)]
    return launch(
        partial(_merge_row, dtype=dtype),
        name=name,
        grid=(rows, batch),
        in_specs=[
            pl.BlockSpec((None, splits, None, dim), lambda r, b: (b, 0, r, 0)),
            pl.BlockSpec((None, splits, None), lambda r, b: (b, 0, r)),
        ],
        out_specs=[pl.BlockSpec((None, None, size), lambda r, b: (b, r, 0)) for size, _ in outs],
        out_shape=[jax.ShapeDtypeStruct((batch, rows, size), dtype) for size, dtype in outs],
    )(parts, log_mass)


def _merge_row(parts: Any, log_mass: Any, out: Any, *scale: Any, dtype: DTypeLike) -> None:
    """Kernel body: merge a row's parts and round to dtype; quantise to float8 if there is a scale.

    Grid: rows x sequences. Blocks: parts [splits, dim] and log_mass [splits] of the row, all in
    registers. Limit: memory bandwidth. Units: float32 parts, logarithms to the base 2; a part of
    -inf is not read; float8 values * scale, float32, are the row.
    """
    dim = parts.shape[1]
    column = jnp.arange(padded(dim))
    row, _ = joined(parts, log_mass)
    row = row.astype(dtype)
    if not scale:
        store(out.at[column], row, mask=column < dim)
        return
    values, factor = to_fp8_runs(row.astype(jnp.float32)[None, :])
    store(out.at[column], values.reshape(-1), mask=column < dim)
    store(scale[0].at[jnp.arange(1)], factor)


def joined(parts: Any, log_mass: Any) -> tuple[Array, Array]:
    """Merge the parts of one row [splits, dim] by their masses [splits]. Returns the row and the
    total log2 mass, LOWEST without visible slots."""
    splits, dim = parts.shape
    split, column = jnp.arange(splits), jnp.arange(padded(dim))
    logs = load(log_mass.at[split])
    exists, peak = logs != -jnp.inf, jnp.maximum(jnp.max(logs), LOWEST)
    weights = jnp.where(exists, jnp.exp2(logs - peak), 0.0)
    values = rows_at(parts, split, column, exists, column < dim)
    total = jnp.sum(weights)
    weighed = jnp.sum(values * weights[:, None], axis=0)
    some = jnp.where(total == 0, 1.0, total)
    return weighed / some, jnp.where(total == 0, LOWEST, peak + jnp.log2(some))
