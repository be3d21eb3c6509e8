"""Attention of a few rows to long contexts on a GPU: parts of a context side by side, then joined.

The rows of a sequence are its queries' heads. A program attends a tile of them to one part of the
context and leaves the result and the logarithm of its mass; a second kernel joins the parts. Where
a context is cut depends on its own length alone, so that neither a neighbour nor the width of the
table changes a row's bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.fp8_matmul.quantize import to_fp8_runs
from pallas_kernels.paged.kernel import (
    LOWEST,
    Context,
    Softmax,
    context_length,
    look_at,
    no_softmax,
    padded,
    positions_of_rows,
    rows_at,
)
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.triton import launch, load, store, whole


@dataclass(frozen=True)
class AttentionTiles:
    """rows x keys: scores that a program has at a time. splits: most parts of a context.

    least_split: slots that a part has where the context goes on; a multiple of keys, as its
    length is. splits is a power of two.
    """

    rows: int = 16
    keys: int = 32
    splits: int = 32
    least_split: int = 256
    num_warps: int = 4
    num_stages: int = 1


def refusal(query: Array, *pools: Array) -> str | None:
    """Why a kernel can't attend these queries to these pools, if it can't."""
    arch = gpu.current().arch
    if arch.startswith("gfx") and arch not in gpu.KNOWN:
        return f"expected {', '.join(gpu.KNOWN)} or an NVIDIA GPU, got {arch}"
    if query.dtype not in (jnp.bfloat16, jnp.float32):
        return f"expected queries of bfloat16 or float32, got {query.dtype}"
    for pool in pools:
        if pool.dtype not in (query.dtype, jnp.float8_e4m3fn):
            return f"expected a pool of {query.dtype} or float8_e4m3fn, got {pool.dtype}"
    return None


def part(split: Array, length: Array, tiles: AttentionTiles) -> tuple[Array, Array]:
    """First slot and end of one part of a context."""
    keys = lax.div(length + tiles.splits * tiles.keys - 1, tiles.splits * tiles.keys) * tiles.keys
    slots = jnp.maximum(keys, tiles.least_split)
    return split * slots, jnp.minimum((split + 1) * slots, length)


def attend_in_parts(
    kernel: Callable[..., None],
    *,
    name: str,
    queries: Sequence[Float[Array, "batch rows _"]],
    paged: PagedKV,
    dim: int,
    row_tiles: int,
    tiles: AttentionTiles,
) -> tuple[Float[Array, "batch splits rows dim"], Float[Array, "batch splits rows"]]:
    """What the kernel leaves for each (row tile, part, sequence): attention and log2-mass.

    kernel(*queries, *pools, *scales, table, positions, ancestors, out, log_mass, tiles=, nodes=).
    """
    (batch, rows, _), ancestors = queries[0].shape, paged.ancestors
    nodes = 0 if ancestors is None else ancestors.shape[-1]
    # Without a tree nothing is read in its place, and something made for it would be a launch.
    mask = paged.positions if ancestors is None else ancestors.astype(jnp.int8)
    sequences = (paged.page_table, paged.positions, mask)
    parts, log_mass = launch(
        partial(kernel, tiles=tiles, nodes=nodes),
        name=name,
        grid=(row_tiles, tiles.splits, batch),
        in_specs=[
            *map(_of_sequence, queries),
            *map(whole, paged.flat_pools),
            *(pl.BlockSpec((None,), lambda t, s, b: (0,)) for _ in paged.factors),
            *map(_of_sequence, sequences),
        ],
        out_specs=(
            pl.BlockSpec((None, None, rows, dim), lambda t, s, b: (b, s, 0, 0)),
            pl.BlockSpec((None, None, rows), lambda t, s, b: (b, s, 0)),
        ),
        out_shape=(
            jax.ShapeDtypeStruct((batch, tiles.splits, rows, dim), jnp.float32),
            jax.ShapeDtypeStruct((batch, tiles.splits, rows), jnp.float32),
        ),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )(*queries, *paged.flat_pools, *paged.factors, *sequences)
    return parts, log_mass


def attend_to_part(
    context: Context,
    tiles: AttentionTiles,
    dim: int,
    add_slots: Callable[[Array, Array, Array, Softmax], Softmax],
) -> Softmax:
    """What a program's rows get from its part of the context, values of size dim.

    add_slots(at, used, seen, state) takes slots into the running softmax; see `look_at`.
    """
    length = context_length(context.table, context.positions, context.page_size, context.nodes)
    start, stop = part(pl.program_id(1), length, tiles)
    position = positions_of_rows(context)

    def add_block(index: Array, state: Softmax) -> Softmax:
        slots = start + index * tiles.keys + jnp.arange(tiles.keys)
        return add_slots(*look_at(context, slots, stop, position), state)

    blocks = pl.cdiv(jnp.maximum(stop - start, 0), tiles.keys)
    return lax.fori_loop(0, blocks, add_block, no_softmax(tiles.rows, dim))


def leave(
    state: Softmax, value_scale: Array, out: Any, log_mass: Any, row: Array, is_row: Array
) -> None:
    """Stores the part's attention and log2-mass: -inf, and no values, where nothing was seen."""
    some = state.mass != 0
    mass = jnp.where(some, state.mass, 1.0)
    column = jnp.arange(state.total.shape[1])
    store(
        out.at[row[:, None], column[None, :]],
        state.total * (value_scale / mass)[:, None],
        mask=(is_row & some)[:, None] & (column < out.shape[1])[None, :],
    )
    store(log_mass.at[row], jnp.where(some, state.peak + jnp.log2(mass), -jnp.inf), mask=is_row)


def _of_sequence(array: Array) -> pl.BlockSpec:
    """A program sees its own sequence's part of the array."""
    return pl.BlockSpec((None, *array.shape[1:]), lambda t, s, b: (b, *(0,) * (array.ndim - 1)))


def merge(
    parts: Float[Array, "batch splits rows dim"],
    log_mass: Float[Array, "batch splits rows"],
    *,
    name: str,
    dtype: DTypeLike,
) -> Float[Array, "batch rows dim"]:
    """Joins the parts of each row; those with nothing seen are not read."""
    (merged,) = _merge(_merge_row, name, parts, log_mass, dtype)
    return merged


def merge_to_fp8(
    parts: Float[Array, "batch splits rows dim"],
    log_mass: Float[Array, "batch splits rows"],
    *,
    name: str,
    dtype: DTypeLike,
) -> tuple[Float[Array, "batch rows dim"], Float[Array, "batch rows 1"]]:
    """The same, rounded to dtype and then quantised: the GPU's float8 and a scale a row."""
    kernel = partial(_merge_row_to_fp8, dtype=dtype)
    values, scale = _merge(kernel, name, parts, log_mass, gpu.current().fp8, jnp.float32)
    return values, scale


def _merge(
    kernel: Callable[..., None], name: str, parts: Array, log_mass: Array, *dtypes: DTypeLike
) -> Sequence[Array]:
    """A program for each row, with outputs of the row's size and, if there is a second dtype, 1."""
    batch, splits, rows, dim = parts.shape
    sizes = [(dim, dtypes[0]), *((1, dtype) for dtype in dtypes[1:])]
    return launch(
        kernel,
        name=name,
        grid=(rows, batch),
        in_specs=[
            pl.BlockSpec((None, splits, None, dim), lambda r, b: (b, 0, r, 0)),
            pl.BlockSpec((None, splits, None), lambda r, b: (b, 0, r)),
        ],
        out_specs=[pl.BlockSpec((None, None, size), lambda r, b: (b, r, 0)) for size, _ in sizes],
        out_shape=[jax.ShapeDtypeStruct((batch, rows, size), dtype) for size, dtype in sizes],
    )(parts, log_mass)


def _merge_row(parts: Any, log_mass: Any, out: Any) -> None:
    """A row's parts joined.

    Grid: rows x sequences. Blocks: parts [splits, dim] and log_mass [splits] of the row, all in
    registers. Limit: memory's bandwidth. Units: float32 parts, logarithms to the base 2; -inf is a
    part that is not read.
    """
    dim = parts.shape[1]
    column = jnp.arange(padded(dim))
    store(out.at[column], _mean(parts, log_mass).astype(out.dtype), mask=column < dim)


def _merge_row_to_fp8(parts: Any, log_mass: Any, out: Any, scale: Any, *, dtype: DTypeLike) -> None:
    """The same, rounded to dtype, as float8 with one scale.

    Grid: rows x sequences. Blocks: parts [splits, dim] and log_mass [splits] of the row, all in
    registers. Limit: memory's bandwidth. Units: values * scale is the row, a float32 scale.
    """
    dim = parts.shape[1]
    column = jnp.arange(padded(dim))
    rounded = _mean(parts, log_mass).astype(dtype).astype(jnp.float32)
    values, factor = to_fp8_runs(rounded[None, :])
    store(out.at[column], values.reshape(-1), mask=column < dim)
    store(scale.at[jnp.arange(1)], factor)


def _mean(parts: Any, log_mass: Any) -> Array:
    """The parts of one row, weighed by their masses."""
    splits, dim = parts.shape
    split, column = jnp.arange(splits), jnp.arange(padded(dim))
    logs = load(log_mass.at[split])
    exists = logs != -jnp.inf
    weights = jnp.where(exists, jnp.exp2(logs - jnp.maximum(jnp.max(logs), LOWEST)), 0.0)
    values = rows_at(parts, split, column, exists, column < dim)
    total = jnp.sum(weights)
    return jnp.sum(values * weights[:, None], axis=0) / jnp.where(total == 0, 1.0, total)
