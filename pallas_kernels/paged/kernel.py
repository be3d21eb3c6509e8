"""Building blocks of attention kernels on paged contexts: slots, masks and the running softmax."""

from functools import reduce
from operator import add, and_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels import gpu
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.triton import dot, load, whole

LOWEST = -1e30
"""Score of masked slots: finite, because -inf - -inf is NaN."""


class Softmax(NamedTuple):
    """Running softmax to the base 2: peak score and mass [rows], weighted sum [rows, dim]."""

    peak: Array
    mass: Array
    total: Array


def arrays_and_specs(
    paged: PagedKV, pools: tuple[Array, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return a launch's arrays and specs: pools as the kernel indexes them, scale factors, page
    table and positions. The third dimension of the grid is the sequences."""
    factors = paged.factors
    one = pl.BlockSpec((None,), lambda *_: (0,))
    sequences = paged.page_table, paged.positions
    specs = tuple(map(whole, pools)), tuple(one for _ in factors), *map(of_sequence, sequences)
    return (pools, factors, *sequences), specs


def of_sequence(array: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
    """Return the spec of a program's own sequence in the array."""
    return pl.BlockSpec((None, *array.shape[1:]), lambda t, s, b: (b, *(0,) * (array.ndim - 1)))


def padded(size: int, least: int = 1) -> int:
    """Return the next power of two: the size of a block. Products take at least 16."""
    return max(least, 1 << (size - 1).bit_length())


def rows_at(ref: Any, row: Array, column: Array, is_row: Array, is_column: Array) -> Array:
    """Load rows of a matrix, or of concatenated matrices, by index; zeros where masked."""
    mask = is_row[:, None] & is_column[None, :]
    index = (lax.div(row, ref.shape[1]), lax.rem(row, ref.shape[1])) if ref.ndim == 3 else (row,)
    place = (*(number[:, None] for number in index), column[None, :])
    return load(ref.at[place], mask=mask, other=0.0)


def load_where(
    ref: Any, place: tuple[Array, ...], *kept: Array | None, hint: str | None = None
) -> Array:
    """Load elements at indices that broadcast, 0 where a mask in `kept` is false (None: all true).
    A masked load is a branch on AMD GPUs, and the code after it waits."""
    shape = jnp.broadcast_shapes(*(index.shape for index in place))
    where = ref.at[tuple(jnp.broadcast_to(index, shape) for index in place)]
    masks = [jnp.broadcast_to(mask, shape) for mask in kept if mask is not None]
    if not masks:
        return load(where, eviction_policy=hint)
    return load(where, mask=reduce(and_, masks), other=0.0, eviction_policy=hint)


def context_length(table: Any, positions: Any, page_size: int, nodes: int = 0) -> Array:
    """Return the number of slots up to the last one that some row of the sequence may see."""
    q_len = positions.shape[0]
    rows = jnp.arange(padded(q_len))
    last = jnp.max(load(positions.at[rows], mask=rows < q_len, other=-1))
    return jnp.clip(last + 1 + nodes, 0, table.shape[0] * page_size)


def slots_in_pool(table: Any, slots: Array, used: Array, page_size: int) -> Array:
    """Return the pool rows of a sequence's slots, where used."""
    page = load(table.at[lax.div(slots, page_size)], mask=used, other=0)
    return page * page_size + lax.rem(slots, page_size)


def in_dtype(stored: Array, dtype: Any) -> Array:
    """Convert a loaded tile to the queries' dtype, exactly.

    NVIDIA GPUs convert float8 to float16, but float16 to bfloat16 only in the unit of special
    functions, which is slow. By way of float32 they do not need it.
    """
    if stored.dtype == jnp.float8_e4m3fn and not gpu.current().is_amd:
        stored = stored.astype(jnp.float16).astype(jnp.float32)
    return stored.astype(dtype)


def no_softmax(rows: int, dim: int) -> Softmax:
    """Return the running softmax before the first key."""
    zeros = jnp.zeros((rows,), jnp.float32)
    return Softmax(zeros + LOWEST, zeros, jnp.zeros((rows, dim), jnp.float32))


class Keys(NamedTuple):
    """A tile of keys: scores and visibility (None: all seen) [rows, keys], values [keys, dim]."""

    scores: Array
    seen: Array | None
    values: Array


def add_keys(state: Softmax, *tiles: Keys) -> Softmax:
    """Add tiles to the running softmax, rescaling once for all of them. Unseen keys do not change
    the bits; a NaN that is seen stays NaN."""
    scores = [
        jnp.where(t.seen, t.scores, LOWEST) if t.seen is not None else t.scores for t in tiles
    ]
    peak = jnp.maximum(state.peak, jnp.max(reduce(jnp.maximum, scores), axis=1))
    weights = [jnp.exp2(of_tile - peak[:, None]) for of_tile in scores]
    weights = [
        jnp.where(t.seen, of_tile, 0.0) if t.seen is not None else of_tile
        for t, of_tile in zip(tiles, weights, strict=True)
    ]
    kept = jnp.exp2(state.peak - peak)
    mass = state.mass * kept + jnp.sum(reduce(add, weights), axis=1)
    total = state.total * kept[:, None]
    for t, of_tile in zip(tiles, weights, strict=True):
        total += dot(of_tile.astype(t.values.dtype), t.values)
    return Softmax(peak, mass, total)
