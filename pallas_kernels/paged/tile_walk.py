"""Loop over the key tiles of a context part, into a running softmax.

Tiles are taken one at a time with page numbers looked up two steps ahead or, if registers have
room, in groups. Groups are either overlapped by Triton, which holds the next group in registers
while one is multiplied from local memory, or loaded ahead into the registers that the last tile has
freed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels import gpu
from pallas_kernels.paged.context_part import (
    AttentionTiles,
    ContextPart,
    Seen,
    Slots,
    keys_of_tile,
    page_inside,
    page_of_tile,
    part,
    seen_by_rows,
    slots_inside,
    slots_of_tile,
)
from pallas_kernels.paged.kernel import Keys, Softmax, add_keys, context_length, no_softmax
from pallas_kernels.triton import load

Tile = TypeVar("Tile")


@dataclass(frozen=True)
class Walk(Generic[Tile]):
    """Key tiles of a part from slot `start` to `stop`, and their visibility to rows at `position`.

    query: index of the query that each row belongs to. read(slots) loads a tile of keys;
    score(tile) returns the rows' scores, to the base 2, and the tile's values.
    """

    own: ContextPart
    query: Array
    position: Array
    start: Array
    stop: Array
    read: Callable[[Slots], Tile]
    score: Callable[[Tile], tuple[Array, Array]]

    @property
    def tiles(self) -> AttentionTiles:
        return self.own.tiles

    def first_of(self, index: Array | int) -> Array:
        return self.start + index * self.tiles.keys

    def page_of(self, index: Array | int) -> Array:
        """Return a tile's page, or those of its slots."""
        return page_of_tile(self.own, self.first_of(index), self.stop)

    def seen_of(self, index: Array | int) -> Seen:
        """Return the rows' visibility of a tile."""
        slots = self.first_of(index) + jnp.arange(self.tiles.keys)
        return seen_by_rows(self.own, self.query, slots, self.stop, self.position)

    def load_inside(self, index: Array | int, page: Array) -> Tile:
        """Load a tile, clamping slots past the part's end."""
        return self.read(slots_inside(self.own, self.first_of(index), self.stop, page))

    def load(self, index: Array | int, page: Array, used: Array | None = None) -> Tile:
        first = self.first_of(index)
        # Inspect the page only here: an earlier inspection would wait for all loads before it.
        page = jnp.where(first < self.stop, page, 0)
        return self.read(slots_of_tile(self.own, first, page, used))

    def keys(self, tile: Tile, seen: Seen | None) -> Keys:
        """Build the softmax's input from a loaded tile."""
        return keys_of_tile(*self.score(tile), seen)

    def tiles_before(self, slot: Array) -> Array:
        """Return the number of tiles that begin before `slot`."""
        return pl.cdiv(jnp.maximum(slot - self.start, 0), self.tiles.keys)


class Loop(NamedTuple):
    """Loop state. body(trip, carry, masked=) takes `stride` tiles; carry[0] is the softmax."""

    stride: int
    carry: Any
    body: Callable[..., Any]


def attend_to_part(
    own: ContextPart,
    query: Array,
    is_row: Array,
    dim: int,
    read: Callable[[Slots], Tile],
    score: Callable[[Tile], tuple[Array, Array]],
    *,
    widened: bool,
) -> Softmax:
    """Attend a program's rows to its part of the context, with values of size `dim`.

    query, read, score: see `Walk`. is_row: whether a row exists. widened: whether keys and values
    are stored in a narrower dtype.
    """
    tiles, length = own.tiles, context_length(own.table, own.positions, own.page_size, own.nodes)
    start, stop = part(pl.program_id(1), length, tiles)
    # Rows that do not exist get position -1, which sees no slot.
    position = load(own.positions.at[query], mask=is_row, other=-1)
    seen_by_all = jnp.min(jnp.where(is_row, position, length)) + 1
    walk, state = Walk(own, query, position, start, stop, read, score), no_softmax(tiles.rows, dim)
    if tiles.group > 1 and not (tiles.ahead or own.nodes or widened):
        return _groups_overlapped(walk, state)
    stride, carry, body = (_groups_ahead if tiles.ahead else _one_by_one)(walk, state)
    whole = walk.tiles_before(jnp.minimum(seen_by_all, stop) - (tiles.keys - 1))
    trips, first = pl.cdiv(walk.tiles_before(stop), stride), jnp.int32(0)
    # Triton would transpose eight-bit values before it widens them, and load single bytes for that.
    # Values that a mask was applied to are already widened.
    if gpu.current().is_amd and not widened:
        first = lax.div(whole, stride)
        carry = lax.fori_loop(0, first, partial(body, masked=False), carry)
    carry = lax.fori_loop(first, trips, partial(body, masked=True), carry)
    return carry[0]


def _one_by_one(walk: Walk[Any], state: Softmax) -> Loop:
    cuts_values = gpu.current().is_amd

    def step(index: Array, carry: Any, *, masked: bool) -> Any:
        state, page, following = carry
        next_but_one = walk.page_of(index + 2)
        seen, used = walk.seen_of(index) if masked else None, None
        if seen is not None and not cuts_values:
            seen, used = Seen(seen.by_row, None), seen.by_some
        state = add_keys(state, walk.keys(walk.load(index, page, used), seen))
        # Without this operation on the value, Triton would not overlap steps.
        return state, jnp.maximum(following, 0), next_but_one

    return Loop(1, (state, walk.page_of(0), walk.page_of(1)), step)


def _groups_overlapped(walk: Walk[Any], state: Softmax) -> Softmax:
    """Process tiles.group tiles at a time in one loop. A second loop for masked tiles would have
    its own copy of the code that Triton puts before and after an overlapped loop."""
    size, visible = walk.tiles.group, jnp.minimum(walk.position, walk.stop - 1)

    def pages_of(trip: Array | int) -> list[Array]:
        firsts = [walk.first_of(trip * size + i) for i in range(size)]
        return [page_inside(walk.own, first, walk.stop) for first in firsts]

    def found(index: Array, page: Array) -> Keys:
        slots = walk.first_of(index) + jnp.arange(walk.tiles.keys)
        seen = Seen(slots[None, :] <= visible[:, None], None)
        return walk.keys(walk.load_inside(index, page), seen)

    def step(trip: Array, carry: Any) -> Any:
        state, pages, following = carry
        next_but_one = pages_of(trip + 2)
        state = add_keys(state, *(found(trip * size + i, page) for i, page in enumerate(pages)))
        # Without this operation on the values, Triton would not overlap steps.
        return state, [jnp.maximum(page, 0) for page in following], next_but_one

    trips = pl.cdiv(walk.tiles_before(walk.stop), size)
    return lax.fori_loop(0, trips, step, (state, pages_of(0), pages_of(1)))[0]


def _groups_ahead(walk: Walk[Any], state: Softmax) -> Loop:
    """Process groups of tiles.group tiles with tiles.ahead groups prefetched."""
    size, stride = walk.tiles.group, walk.tiles.group * walk.tiles.ahead

    def step(trip: Array, carry: Any, *, masked: bool) -> Any:
        (state, groups), after = carry, []
        pages = [walk.page_of((trip + 1) * stride + i) for i in range(stride)]
        for number, group in enumerate(groups):
            places = range(number * size, (number + 1) * size)
            found = [
                walk.keys(tile, walk.seen_of(trip * stride + i) if masked else None)
                for i, tile in zip(places, group, strict=True)
            ]
            state = add_keys(state, *found)
            after.append([walk.load((trip + 1) * stride + i, pages[i]) for i in places])
        return state, after

    pages: Sequence[Array] = [walk.page_of(i) for i in range(stride)]
    there = [walk.load(i, page) for i, page in enumerate(pages)]
    return Loop(stride, (state, [there[i : i + size] for i in range(0, stride, size)]), step)
