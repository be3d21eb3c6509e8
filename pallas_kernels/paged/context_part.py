"""Inside of an attention kernel: a program's rows and its part of one sequence's context.

The part is walked in tiles of keys, the next one on its way while one is multiplied. Where a page
holds whole tiles, a tile lies in one page: its number is a scalar, looked up two steps before.

On AMD GPUs a masked load is a branch, behind which the code waits: so no load of a pool is masked,
what nobody sees is cut from the values instead, and tiles that every row sees take no masks at all.
On NVIDIA GPUs values go from memory to shared memory to the matrix units, and masks cost nothing.
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
    """rows x keys: scores that a program has at a time. splits: most parts of a context.

    least_split: slots that a part has where the context goes on; a multiple of keys, as its
    length is. splits is a power of two. group: tiles that are taken into the softmax together.
    ahead: groups that are on their way in registers; 0 leaves it to Triton to overlap loads, where
    trees and keys that are widened have groups of one.
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
    """Where a tile of keys lies: the page and the number there of each slot [keys]; where all are
    in one page that page, a scalar, and it may be the first one's number alone. used [keys]: what
    is loaded, zeros stand for the rest; None for all of it."""

    page: Array
    number: Array
    used: Array | None


class Seen(NamedTuple):
    """What rows see of a tile: by_row [rows, keys]; by_some [keys], what is not may hold anything,
    None where it is zero."""

    by_row: Array
    by_some: Array | None


class ContextPart(NamedTuple):
    """A program's part of one sequence's context, and where it leaves what its rows get of it.

    Refs: table [pages_per_seq], positions [q_len], ancestors [q_len, nodes]; out [rows, dim],
    log_mass [rows], None where out has room for it. nodes: of the tree that the queries are nodes
    of, 0 where they are none.
    """

    page_size: int
    nodes: int
    tiles: AttentionTiles
    table: Any
    positions: Any
    ancestors: Any
    out: Any
    log_mass: Any = None


def part(split: Array, length: Array, tiles: AttentionTiles) -> tuple[Array, Array]:
    """First slot and end of one part of a context."""
    keys = lax.div(length + tiles.splits * tiles.keys - 1, tiles.splits * tiles.keys) * tiles.keys
    slots = jnp.maximum(keys, tiles.least_split)
    return split * slots, jnp.minimum((split + 1) * slots, length)


def page_of_tile(own: ContextPart, first: Array, stop: Array) -> Array:
    """Of the tile from this slot on: its page, or those of its slots [keys]; any number behind the
    part's end."""
    if own.page_size % own.tiles.keys == 0:
        exists = first < stop
        return own.table[jnp.where(exists, lax.div(first, own.page_size), 0)]
    slots = first + jnp.arange(own.tiles.keys)
    return load(own.table.at[lax.div(slots, own.page_size)], mask=slots < stop, other=0)


def slots_of_tile(own: ContextPart, first: Array, page: Array, used: Array | None) -> Slots:
    """The tile from this slot on, in this page or these."""
    slots = first if page.ndim == 0 else first + jnp.arange(own.tiles.keys)
    return Slots(page, lax.rem(slots, own.page_size), used)


def page_inside(own: ContextPart, first: Array, stop: Array) -> Array:
    """As `page_of_tile`, where the part's last slot stands for those behind its end."""
    begin, further = _inside(own, first, stop)
    if own.page_size % own.tiles.keys == 0:
        return own.table[lax.div(begin, own.page_size)]
    return load(own.table.at[lax.div(begin + further, own.page_size)])


def slots_inside(own: ContextPart, first: Array, stop: Array, page: Array) -> Slots:
    """As `slots_of_tile`, where the part's last slot stands for those behind its end: whatever is
    loaded is of a slot that some row may see, so nothing needs to be cut from it."""
    begin, further = _inside(own, first, stop)
    if page.ndim:
        return Slots(page, lax.rem(begin + further, own.page_size), None)
    return Slots(page, lax.rem(begin, own.page_size) + further, None)


def _inside(own: ContextPart, first: Array, stop: Array) -> tuple[Array, Array]:
    """A slot, and how far behind it those of the tile are [keys]."""
    last = jnp.maximum(stop - 1, 0)
    further = jnp.maximum(last - first, 0)
    return jnp.minimum(first, last), jnp.minimum(jnp.arange(own.tiles.keys), further)


def seen_by_rows(
    own: ContextPart, query: Array, slots: Array, stop: Array, position: Array
) -> Seen:
    """Which row sees which of the slots before `stop`."""
    used = slots < stop
    seen = (slots[None, :] <= position[:, None]) & used[None, :]
    if not own.nodes:
        return Seen(seen, used)
    node = slots[None, :] - position[:, None] - 1
    is_node = (node >= 0) & (node < own.nodes) & (used[None, :] & (position >= 0)[:, None])
    ancestor = load(own.ancestors.at[query[:, None], node], mask=is_node, other=0)
    seen = seen | (ancestor != 0)
    # Between the nodes that are asked for may be slots that nobody has written.
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
    """Of each slot's numbers these [keys, columns], from the first one on; zero from `size` on.

    pool: [pages, page_size * width]. hint: Triton's eviction policy.
    """
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
    """A tile for the softmax; values that nobody sees may be NaN."""
    if seen is None:
        return Keys(scores, None, values)
    if seen.by_some is not None:
        values = jnp.where(seen.by_some[:, None], values, 0)
    return Keys(scores, seen.by_row, values)


def leave(own: ContextPart, state: Softmax, value_scale: Array, row: Array, is_row: Array) -> None:
    """Stores the part's attention and log2-mass: -inf, and no values, where nothing was seen."""
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
