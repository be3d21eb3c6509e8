"""One launch over the tiles of the experts: gate and up with SwiGLU, or down."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from pallas_kernels.fp8_matmul.operands import as_weight
from pallas_kernels.grouped_matmul.activations import activations
from pallas_kernels.grouped_matmul.in_passing import in_passing
from pallas_kernels.grouped_matmul.products import Part, products
from pallas_kernels.grouped_matmul.quantize import mxfp4_shapes, to_mxfp4
from pallas_kernels.grouped_matmul.shared import Matrix
from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.grouped_matmul.tiles import ExpertTiles, choose_tiles
from pallas_kernels.quantized import QuantFormat, QuantizedArray
from pallas_kernels.quantized.array import BLOCK, GROUP
from pallas_kernels.tile_product import Operand
from pallas_kernels.triton import launch, load, store, whole


@dataclass(frozen=True)
class ExpertBatch:
    """The rows of a call. Pairs are token * top_k + choice, top_k 0 where nothing is routed; with a
    shared expert, which every token chose, its results follow those of the pairs and its tiles come
    before theirs."""

    tokens: int
    top_k: int
    rows: int
    shared: bool

    @property
    def pairs(self) -> int:
        """How many (token, choice) there are."""
        return self.tokens * self.top_k

    @property
    def shared_tiles(self) -> int:
        """Tiles of the shared expert."""
        return pl.cdiv(self.tokens, self.rows) if self.shared else 0

    @property
    def results(self) -> int:
        """Rows of what a launch writes."""
        return self.pairs + (self.tokens if self.shared else 0)


class RoutedAndShared(NamedTuple):
    """What the routed experts have, Operands or formats, and the shared one in its place."""

    routed: Any
    shared: Any


def multiply(
    batch: ExpertBatch,
    order: TileMap,
    x: RoutedAndShared,
    stacks: Sequence[Matrix],
    shared: Sequence[Matrix],
    dtype: DTypeLike,
    *,
    then: RoutedAndShared | None = None,
) -> RoutedAndShared:
    """[results, outputs]: silu(gate x) * up x of two stacks from x of the tokens, in the map's
    order; of one stack, its product with such rows, in the order of the pairs.

    x: `activations` of the rows. The results are rounded to dtype; then: the formats of what
    multiplies them next, for which they come out as that takes them.
    """
    (_, inputs, outputs), format = stacks[0].shape, format_of(stacks[0])
    formats = RoutedAndShared(format, format_of(shared[0]) if shared else format)
    name = "expert_gate_up" if len(stacks) == 2 else "expert_down"
    tiles = _tiles(name, batch, x, stacks[0], shared, formats)
    arrays = (
        order,
        x,
        [as_weight(stack) for stack in stacks],
        [as_weight(one[None]) for one in shared],
    )
    in_mxfp4 = tiles.columns % GROUP == 0 and all(
        format is not None and format.activations == "mxfp4" for format in then or (None,)
    )
    out = Operand(jax.ShapeDtypeStruct((batch.results, outputs), dtype))
    if in_mxfp4:
        out = Operand(*mxfp4_shapes(batch.results, outputs, dtype))
    sizes = RoutedAndShared((inputs, outputs), shared[0].shape if shared else None)
    (result,) = launch(
        partial(_kernel, tile=Tile(batch, tiles, sizes, formats, jnp.dtype(dtype), in_mxfp4)),
        name=name,
        grid=(pl.cdiv(outputs, tiles.columns), batch.shared_tiles + order.expert.size),
        in_specs=_specs(batch, arrays),
        out_shape=[out],
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )(*arrays)
    if in_mxfp4 or then is None:
        return RoutedAndShared(result, result)
    routed = _as_input(result, then.routed)
    return RoutedAndShared(
        routed, routed if then.shared == then.routed else _as_input(result, then.shared)
    )


def _tiles(
    name: str,
    batch: ExpertBatch,
    x: RoutedAndShared,
    stack: Matrix,
    shared: Sequence[Matrix],
    formats: RoutedAndShared,
) -> ExpertTiles:
    """Those of both; steps end where the shared expert's inputs do."""
    experts, inputs, outputs = stack.shape
    hit = min(batch.pairs, experts) + batch.shared_tiles
    wide = any(rows.values.dtype == jnp.float32 for rows in x)
    tiles = choose_tiles(name, batch.rows, hit, inputs, outputs, formats, wide=wide)
    if shared and shared[0].shape[0] % tiles.depth:
        return replace(tiles, depth=min(tiles.depth, BLOCK))
    return tiles


def _specs(batch: ExpertBatch, arrays: Any) -> Any:
    """Every program sees all arrays whole, and of the map its own tile and the pairs."""
    one_tile = pl.BlockSpec((None,), lambda _, tile: (jnp.maximum(tile - batch.shared_tiles, 0),))
    used = pl.BlockSpec((None,), lambda *_: (0,))
    order, *others = jax.tree.map(whole, arrays)
    return (TileMap(used, one_tile, one_tile, one_tile, order.order), *others)


def _as_input(result: Operand, format: QuantFormat | None) -> Operand:
    return result if in_passing(format) else activations(result.values, format)


def format_of(matrix: Matrix) -> QuantFormat | None:
    """None for plain weights."""
    return matrix.format if isinstance(matrix, QuantizedArray) else None


@dataclass(frozen=True)
class Tile:
    """What the programs of a launch have in common; sizes: inputs and outputs."""

    batch: ExpertBatch
    tiles: ExpertTiles
    sizes: RoutedAndShared
    formats: RoutedAndShared
    dtype: np.dtype
    in_mxfp4: bool


class TileRows(NamedTuple):
    """A tile's rows; those that are not inside repeat one that is.

    place: in the order of the map; pair: token * top_k + choice. Those of the shared expert follow
    behind all others.
    """

    token: Array
    place: Array
    pair: Array
    inside: Array


def _kernel(order: Any, x: Any, stacks: Any, shared: Any, out: Any, *, tile: Tile) -> None:
    """One tile of pairs of one expert times a strip of its columns.

    Grid: strips of columns x (tiles of the shared expert + most tiles there can be). Blocks: of the
    map one tile's numbers, everything else whole; a program multiplies [rows, depth] with [columns,
    depth] of each stack and sums float32 [rows, columns]. Limit: reading the weights of the experts
    that were chosen, each once; registers, 161, where they are unpacked. Units: rows are counted as
    tokens, places in the map or pairs, token * top_k + choice; scales as the formats say.
    """
    # Interpreted, a program's indices are not known inside of `pl.when`.
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
        # A shared expert that devices cut alone has less columns than the routed ones.
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
    return TileRows(pair // batch.top_k, place, pair, inside)


def _shared_rows(index: Array, batch: ExpertBatch) -> TileRows:
    row = index * batch.rows + jnp.arange(batch.rows)
    inside = row < batch.tokens
    token = jnp.where(inside, row, 0)
    return TileRows(token, batch.pairs + token, batch.pairs + token, inside)


def _store(out: Any, rows: Array, inside: Array, strip: Array, value: Array) -> None:
    """A strip of columns; those of several arrays are as many, and of different widths."""
    columns = strip * value.shape[1] + jnp.arange(value.shape[1])
    mask = inside[:, None] & (columns < out.shape[1])[None, :]
    # Interpreted, a masked store writes what was there: not to a row that this tile writes.
    apart = jnp.where(inside, rows, out.shape[0])
    store(out.at[apart[:, None], columns[None, :]], value.astype(out.dtype), mask=mask)
