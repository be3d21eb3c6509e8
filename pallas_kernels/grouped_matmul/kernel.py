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

from pallas_kernels.grouped_matmul.activations import activations
from pallas_kernels.grouped_matmul.in_passing import in_passing
from pallas_kernels.grouped_matmul.products import Operand, Part, products
from pallas_kernels.grouped_matmul.quantize import mxfp4_shapes, to_mxfp4
from pallas_kernels.grouped_matmul.shared import Matrix
from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.grouped_matmul.tiles import Tiles, choose_tiles
from pallas_kernels.quantized import QuantFormat, QuantizedArray
from pallas_kernels.quantized.array import BLOCK, GROUP
from pallas_kernels.triton import launch, load, store, whole


@dataclass(frozen=True)
class Batch:
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


class Sides(NamedTuple):
    """What the routed experts have, Operands or formats, and the shared one in its place."""

    routed: Any
    shared: Any


def multiply(
    batch: Batch,
    order: TileMap,
    x: Sides,
    stacks: Sequence[Matrix],
    shared: Sequence[Matrix],
    dtype: DTypeLike,
    *,
    then: Sides | None = None,
    chosen: Tiles | None = None,
) -> Sides:
    """[results, outputs]: silu(gate x) * up x of two stacks from x of the tokens, in the map's
    order; of one stack, its product with such rows, in the order of the pairs.

    x: `activations` of the rows. The results are rounded to dtype; then: the formats of what
    multiplies them next, for which they come out as that takes them.
    """
    (experts, inputs, outputs), format = stacks[0].shape, format_of(stacks[0])
    formats = Sides(format, format_of(shared[0]) if shared else format)
    name = "expert_gate_up" if len(stacks) == 2 else "expert_down"
    hit = min(batch.pairs, experts) + batch.shared_tiles
    chosen = chosen or choose_tiles(name, batch.rows, hit, inputs, outputs, formats)
    if chosen.depth > BLOCK and any(f is not None and f.weights == "fp8_block" for f in formats):
        raise ValueError(f"a step of fp8_block has at most {BLOCK} inputs, got {chosen.depth}")
    arrays = (
        order,
        x,
        [_operand(stack) for stack in stacks],
        [_operand(one[None]) for one in shared],
    )
    one_tile = pl.BlockSpec((None,), lambda _, tile: (jnp.maximum(tile - batch.shared_tiles, 0),))
    used = pl.BlockSpec((None,), lambda *_: (0,))
    specs = jax.tree.map(whole, arrays)
    specs = (TileMap(used, one_tile, one_tile, one_tile, specs[0].order), *specs[1:])
    in_mxfp4 = chosen.columns % GROUP == 0 and all(
        format is not None and format.activations == "mxfp4" for format in then or (None,)
    )
    out = Operand(jax.ShapeDtypeStruct((batch.results, outputs), dtype))
    if in_mxfp4:
        out = Operand(*mxfp4_shapes(batch.results, outputs, dtype))
    sizes = Sides((inputs, outputs), shared[0].shape if shared else None)
    if shared and shared[0].shape[0] % chosen.depth:
        chosen = replace(chosen, depth=BLOCK)
    tile = Tile(batch, chosen, sizes, formats, jnp.dtype(dtype), in_mxfp4)
    (result,) = launch(
        partial(_kernel, tile=tile),
        name=name,
        grid=(pl.cdiv(outputs, chosen.columns), batch.shared_tiles + order.expert.size),
        in_specs=specs,
        out_specs=jax.tree.map(whole, [out]),
        out_shape=[out],
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )(*arrays)
    if in_mxfp4 or then is None:
        return Sides(result, result)
    routed = _as_input(result, then.routed)
    return Sides(routed, routed if then.shared == then.routed else _as_input(result, then.shared))


def _as_input(result: Operand, format: QuantFormat | None) -> Operand:
    return result if in_passing(format) else activations(result.values, format)


def format_of(matrix: Matrix) -> QuantFormat | None:
    """None for plain weights."""
    return matrix.format if isinstance(matrix, QuantizedArray) else None


def _operand(stack: Matrix) -> Operand:
    if isinstance(stack, QuantizedArray):
        return Operand(stack.values, stack.scale)
    return Operand(stack)


@dataclass(frozen=True)
class Tile:
    """What the programs of a launch have in common; sizes: inputs and outputs."""

    batch: Batch
    tiles: Tiles
    sizes: Sides
    formats: Sides
    dtype: np.dtype
    in_mxfp4: bool


class Rows(NamedTuple):
    """A tile's rows; those that are not inside repeat one that is.

    place: in the order of the map; pair: token * top_k + choice. Those of the shared expert follow
    behind all others.
    """

    token: Array
    place: Array
    pair: Array
    inside: Array


def _kernel(order: Any, x: Any, stacks: Any, shared: Any, out: Any, *, tile: Tile) -> None:
    # Interpreted, a program's indices are not known inside of `pl.when`.
    strip, index = pl.program_id(0), pl.program_id(1)
    batch, columns = tile.batch, strip * tile.tiles.columns + jnp.arange(tile.tiles.columns)
    routed = index - batch.shared_tiles

    if batch.top_k:

        @pl.when((routed >= 0) & (routed < load(order.used)))
        def _() -> None:
            inputs, outputs = tile.sizes.routed
            part = Part(load(order.expert), columns, inputs, outputs, tile.formats.routed)
            _run(x.routed, stacks, out, tile, part, _routed_rows(order, batch), strip)

    if batch.shared:
        # A shared expert that devices cut alone has less columns than the routed ones.
        @pl.when((routed < 0) & (strip * tile.tiles.columns < tile.sizes.shared[1]))
        def _() -> None:
            inputs, outputs = tile.sizes.shared
            part = Part(jnp.int32(0), columns, inputs, outputs, tile.formats.shared)
            _run(x.shared, shared, out, tile, part, _shared_rows(index, batch), strip)


def _run(
    x: Any, stacks: Any, out: Operand, tile: Tile, part: Part, rows: Rows, strip: Array
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


def _routed_rows(order: TileMap, batch: Batch) -> Rows:
    row = jnp.arange(batch.rows)
    inside = row < load(order.rows)
    place = load(order.first) + jnp.where(inside, row, 0)
    pair = load(order.order.at[place])
    return Rows(pair // batch.top_k, place, pair, inside)


def _shared_rows(index: Array, batch: Batch) -> Rows:
    row = index * batch.rows + jnp.arange(batch.rows)
    inside = row < batch.tokens
    token = jnp.where(inside, row, 0)
    return Rows(token, batch.pairs + token, batch.pairs + token, inside)


def _store(out: Any, rows: Array, inside: Array, strip: Array, value: Array) -> None:
    """A strip of columns; those of several arrays are as many, and of different widths."""
    columns = strip * value.shape[1] + jnp.arange(value.shape[1])
    mask = inside[:, None] & (columns < out.shape[1])[None, :]
    # Interpreted, a masked store writes what was there: not to a row that this tile writes.
    apart = jnp.where(inside, rows, out.shape[0])
    store(out.at[apart[:, None], columns[None, :]], value.astype(out.dtype), mask=mask)
