"""One program of the experts' kernels: a tile of one expert's rows times a strip of columns."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.grouped_matmul.products import Part, products
from pallas_kernels.grouped_matmul.quantize import to_mxfp4
from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.grouped_matmul.tiles import ExpertTiles
from pallas_kernels.tile_product import Operand
from pallas_kernels.triton import load, store


@dataclass(frozen=True)
class ExpertBatch:
    """Row counts of a call. top_k is 0 if nothing is routed. Pairs are numbered token * top_k +
    choice. Results of a shared expert follow those of the pairs; its tiles come first."""

    tokens: int
    top_k: int
    rows: int
    shared: bool

    @property
    def pairs(self) -> int:
        """Number of (token, choice) pairs."""
        return self.tokens * self.top_k

    @property
    def shared_tiles(self) -> int:
        """Number of tiles of the shared expert."""
        return pl.cdiv(self.tokens, self.rows) if self.shared else 0

    @property
    def results(self) -> int:
        """Number of rows that a launch writes."""
        return self.pairs + (self.tokens if self.shared else 0)


class RoutedAndShared(NamedTuple):
    """A value (an Operand or a format) of the routed experts, and that of the shared expert."""

    routed: Any
    shared: Any


@dataclass(frozen=True)
class Tile:
    """Static parameters of a launch; `sizes` are (inputs, outputs)."""

    batch: ExpertBatch
    tiles: ExpertTiles
    sizes: RoutedAndShared
    formats: RoutedAndShared
    dtype: np.dtype
    in_mxfp4: bool


class TileRows(NamedTuple):
    """Rows of a tile; rows that are not inside repeat one that is.

    place: index in the tile map's order. pair: token * top_k + choice. Rows of the shared expert
    come after all others.
    """

    token: Array
    place: Array
    pair: Array
    inside: Array


def run_program(order: Any, x: Any, stacks: Any, shared: Any, out: Any, *, tile: Tile) -> None:
    """Kernel body: a tile of one expert's pairs times a strip of its columns.

    Grid: strips of columns x (tiles of the shared expert + most tiles there can be). Blocks: of the
    map one tile's numbers, everything else whole; a program multiplies [rows, depth] with [columns,
    depth] of each stack and sums float32 [rows, columns]. Limit: reading the weights of the chosen
    experts, each once; registers, 150, where they are unpacked. Units: rows are counted as tokens,
    places in the map or pairs, token * top_k + choice; scales as the formats say.
    """
    # In interpreted mode, program ids are not available inside `pl.when`.
    strip, index = pl.program_id(0), pl.program_id(1)
    batch, columns = tile.batch, strip * tile.tiles.columns + jnp.arange(tile.tiles.columns)
    routed = index - batch.shared_tiles

    if batch.top_k:

        @pl.when((routed >= 0) & (routed < load(order.used)))
        def _() -> None:
            inputs, outputs = tile.sizes.routed
            part = Part(load(order.expert), columns, inputs, outputs, tile.formats.routed)
            _run_tile(x.routed, stacks, out, tile, part, _routed_rows(order, batch), strip)

    if batch.shared:
        # A shared expert split over devices on its own has fewer columns than the routed ones.
        @pl.when((routed < 0) & (strip * tile.tiles.columns < tile.sizes.shared[1]))
        def _() -> None:
            inputs, outputs = tile.sizes.shared
            part = Part(jnp.int32(0), columns, inputs, outputs, tile.formats.shared)
            _run_tile(x.shared, shared, out, tile, part, _shared_rows(index, batch), strip)


def _run_tile(
    x: Any, stacks: Any, out: Operand, tile: Tile, part: Part, rows: TileRows, strip: Array
) -> None:
    if len(stacks) == 2:
        gate, up = products(x, rows.token, stacks, part, tile.tiles.depth)
        place, value = rows.place, jax.nn.silu(gate) * up
    else:
        (value,) = products(x, rows.place, stacks, part, tile.tiles.depth)
        place = rows.pair
    value = value.astype(tile.dtype)
    found = to_mxfp4(value.astype(jnp.float32)) if tile.in_mxfp4 else (value,)
    for ref, numbers in zip(jax.tree.leaves(out), found, strict=True):
        _store(ref, place, rows.inside, strip, numbers)


def _routed_rows(order: TileMap, batch: ExpertBatch) -> TileRows:
    row = jnp.arange(batch.rows)
    inside = row < load(order.rows)
    place = load(order.first) + jnp.where(inside, row, 0)
    pair = load(order.order.at[place])
    return TileRows(jax.lax.div(pair, batch.top_k), place, pair, inside)


def _shared_rows(index: Array, batch: ExpertBatch) -> TileRows:
    row = index * batch.rows + jnp.arange(batch.rows)
    inside = row < batch.tokens
    token = jnp.where(inside, row, 0)
    return TileRows(token, batch.pairs + token, batch.pairs + token, inside)


def _store(out: Any, rows: Array, inside: Array, strip: Array, value: Array) -> None:
    """Store a strip of columns. Arrays have equally many strips, of different widths."""
    columns = strip * value.shape[1] + jnp.arange(value.shape[1])
    mask = inside[:, None] & (columns < out.shape[1])[None, :]
    # In interpreted mode, a masked store rewrites the old value: keep it off rows that this tile
    # writes.
    apart = jnp.where(inside, rows, out.shape[0])
    store(out.at[apart[:, None], columns[None, :]], value.astype(out.dtype), mask=mask)
