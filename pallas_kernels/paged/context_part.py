"""Inside an attention kernel: a program's rows and its part of one sequence's context.

A part is processed in tiles of keys; the next tile is loaded while one is multiplied. If a page
holds whole tiles, a tile lies in one page: its number is a scalar, looked up two steps ahead.

On AMD GPUs a masked load is a branch, after which the code waits. So loads of a pool are never
masked; values of unseen slots are zeroed instead, and tiles that every row sees take no masks at
all. On NVIDIA GPUs, values go from memory to shared memory to the matrix units, and masks are free.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.paged.kernel import (
    Keys,
    Softmax,
    load_where,
)
from pallas_kernels.triton import load, store


@dataclass(frozen=True)
class AttentionTiles:
    """Tile sizes of attention: a program computes rows x keys scores at a time.

    splits: most parts of a context, a power of two. least_split: fewest slots of a part that is not
    the last, a multiple of keys, as its length is. group: tiles that enter the softmax together.
    ahead: groups prefetched into registers; with 0, Triton overlaps the loads, and trees and
    widened keys have groups of one.
    """

    rows: int = 16
    keys: int = 32
    splits: int = 32
    least_split: int = 256
    num_warps: int = 4
    num_stages: int = 1
    group: int = 1
    ahead: int = 0


class Slots(NamedTuple):
    """Location of a tile of keys in the pool: page, and number in the page, of each slot [keys]. If
    all slots are in one page, page is a scalar, and number may be that of the first slot only. used
    [keys]: slots to load, with zeros for the others; None loads all."""

    page: Array
    number: Array
    used: Array | None


class Seen(NamedTuple):
    """Visibility of a tile: by_row [rows, keys], and by_some [keys], the slots that some row sees.
    Other slots may hold anything; by_some is None if they hold zeros."""

    by_row: Array
    by_some: Array | None


class ContextPart(NamedTuple):
    """A program's part of one sequence's context. Refs: table [pages_per_seq], positions [q_len],
    ancestors [q_len, nodes]; out [rows, dim], log_mass [rows] or None if out includes it. nodes:
    size of the tree that the queries are nodes of, else 0."""

    page_size: int
    nodes: int
    tiles: AttentionTiles
    table: Any
    positions: Any
    ancestors: Any
    out: Any
    log_mass: Any = None


def part(split: Array, length: Array, tiles: AttentionTiles) -> tuple[Array, Array]:
    """Return the first slot and the end of one part of a context."""
    keys = lax.div(length + tiles.splits * tiles.keys - 1, tiles.splits * tiles.keys) * tiles.keys
    slots = jnp.maximum(keys, tiles.least_split)
    return split * slots, jnp.minimum((split + 1) * slots, length)


def page_of_tile(own: ContextPart, first: Array, stop: Array) -> Array:
    """Return the page of the tile at slot `first`, or those of its slots [keys]. The result is
    arbitrary past the part's end."""
    if own.page_size % own.tiles.keys == 0:
        exists = first < stop
        return own.table[jnp.where(exists, lax.div(first, own.page_size), 0)]
    slots = first + jnp.arange(own.tiles.keys)
    return load(own.table.at[lax.div(slots, own.page_size)], mask=slots < stop, other=0)


def slots_of_tile(own: ContextPart, first: Array, page: Array, used: Array | None) -> Slots:
    """Return the slots of the tile at `first`, in the given page or pages."""
    slots = first if page.ndim == 0 else first + jnp.arange(own.tiles.keys)
    return Slots(page, lax.rem(slots, own.page_size), used)


def page_inside(own: ContextPart, first: Array, stop: Array) -> Array:
    """Return the pages as `page_of_tile`, but clamp slots past the end to the part's last slot."""
    begin, further = _inside(own, first, stop)
    if own.page_size % own.tiles.keys == 0:
        return own.table[lax.div(begin, own.page_size)]
    return load(own.table.at[lax.div(begin + further, own.page_size)])


def slots_inside(own: ContextPart, first: Array, stop: Array, page: Array) -> Slots:
    """Return the slots as `slots_of_tile`, but clamp those past the end to the part's last slot.
    Every loaded slot is then one that some row may see, so no value needs to be zeroed."""
    begin, further = _inside(own, first, stop)
    if page.ndim:
        return Slots(page, lax.rem(begin + further, own.page_size), None)
    return Slots(page, lax.rem(begin, own.page_size) + further, None)


def _inside(own: ContextPart, first: Array, stop: Array) -> tuple[Array, Array]:
    """Return a slot inside the part, and the offsets of the tile's slots from it [keys]."""
    last = jnp.maximum(stop - 1, 0)
    further = jnp.maximum(last - first, 0)
    return jnp.minimum(first, last), jnp.minimum(jnp.arange(own.tiles.keys), further)


def seen_by_rows(
    own: ContextPart, query: Array, slots: Array, stop: Array, position: Array
) -> Seen:
    """Return which rows see which of the slots before `stop`."""
    used = slots < stop
    seen = (slots[None, :] <= position[:, None]) & used[None, :]
    if not own.nodes:
        return Seen(seen, used)
    node = slots[None, :] - position[:, None] - 1
    is_node = (node >= 0) & (node < own.nodes) & (used[None, :] & (position >= 0)[:, None])
    ancestor = load(own.ancestors.at[query[:, None], node], mask=is_node, other=0)
    seen = seen | (ancestor != 0)
    # Between the queried nodes there may be slots that were never written.
    return Seen(seen, jnp.max(seen.astype(jnp.int32), axis=0) > 0)


def numbers_of(
    own: ContextPart,
    pool: Any,
    slots: Slots,
    column: Array,
    size: int,
    first: Array | int = 0,
    hint: str | None = None,
) -> Array:
    """Load `column` numbers of each slot, offset by `first`: [keys, columns], zero from `size` on.
    pool: [pages, page_size * width]. hint: Triton's eviction policy."""
    width, keys = pool.shape[1] // own.page_size, jnp.arange(own.tiles.keys)
    page = slots.page[:, None] if slots.page.ndim else slots.page
    if slots.number.ndim:
        in_page = (slots.number * width)[:, None] + column[None, :]
    else:
        in_page = slots.number * width + ((keys * width)[:, None] + column[None, :])
    is_column = None if column.size == size else (column < size)[None, :]
    used = None if slots.used is None else slots.used[:, None]
    return load_where(pool, (page, in_page + first), used, is_column, hint=hint)


def keys_of_tile(scores: Array, values: Array, seen: Seen | None) -> Keys:
    """Build a tile for the softmax, zeroing values of unseen slots, which may be NaN."""
    if seen is None:
        return Keys(scores, None, values)
    if seen.by_some is not None:
        values = jnp.where(seen.by_some[:, None], values, 0)
    return Keys(scores, seen.by_row, values)


def store_part(
    own: ContextPart, state: Softmax, value_scale: Array, row: Array, is_row: Array
) -> None:
    """Store the part's attention and log2 mass: -inf and no values without visible slots."""
    some = state.mass != 0
    mass = jnp.where(some, state.mass, 1.0)
    column = jnp.arange(state.total.shape[1])
    store(
        own.out.at[row[:, None], column[None, :]],
        state.total * (value_scale / mass)[:, None],
        mask=(is_row & some)[:, None] & (column < own.out.shape[1])[None, :],
    )
    log_mass = jnp.where(some, state.peak + jnp.log2(mass), -jnp.inf)
    store(own.log_mass.at[row], log_mass, mask=is_row)
