"""Launch over the tiles of the experts: gate and up with SwiGLU, or down."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from pallas_kernels.fp8_matmul.operands import as_weight
from pallas_kernels.grouped_matmul.activations import activations, in_passing
from pallas_kernels.grouped_matmul.program import ExpertBatch, RoutedAndShared, Tile, run_program
from pallas_kernels.grouped_matmul.quantize import mxfp4_shapes
from pallas_kernels.grouped_matmul.shared import Matrix
from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.grouped_matmul.tiles import ExpertTiles, choose_tiles
from pallas_kernels.grouped_matmul.unpack import as_words
from pallas_kernels.quantized import QuantFormat, QuantizedArray
from pallas_kernels.quantized.formats import BLOCK, GROUP
from pallas_kernels.tile_product import Operand
from pallas_kernels.triton import launch, whole


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
    """Multiply rows with two stacks, silu(gate x) * up x, or with one stack.

    With two stacks, x holds the tokens and the results [results, outputs] are in the order of the
    tile map. With one stack, x holds such results and the output is in the order of the pairs.

    x: rows as `activations` returns them. Results are rounded to dtype. then: formats of the
    kernels that multiply the results next; results are quantised for them.
    """
    (_, inputs, outputs), format = stacks[0].shape, format_of(stacks[0])
    formats = RoutedAndShared(format, format_of(shared[0]) if shared else format)
    name = "expert_gate_up" if len(stacks) == 2 else "expert_down"
    tiles = _tiles(name, batch, x, stacks[0], shared, formats)
    arrays = (
        order,
        x,
        [_as_operand(stack, x.routed) for stack in stacks],
        [_as_operand(one[None], x.shared) for one in shared],
    )
    in_mxfp4 = tiles.columns % GROUP == 0 and all(
        format is not None and format.activations == "mxfp4" for format in then or (None,)
    )
    out = Operand(jax.ShapeDtypeStruct((batch.results, outputs), dtype))
    if in_mxfp4:
        out = Operand(*mxfp4_shapes(batch.results, outputs, dtype))
    sizes = RoutedAndShared((inputs, outputs), shared[0].shape if shared else None)
    (result,) = launch(
        partial(run_program, tile=Tile(batch, tiles, sizes, formats, jnp.dtype(dtype), in_mxfp4)),
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
    """Choose tiles for routed and shared experts. Steps end where the shared expert's inputs do."""
    experts, inputs, outputs = stack.shape
    hit = min(batch.pairs, experts) + batch.shared_tiles
    wide = any(rows.values.dtype == jnp.float32 for rows in x)
    tiles = choose_tiles(name, batch.rows, hit, inputs, outputs, formats, wide=wide)
    if shared and shared[0].shape[0] % tiles.depth:
        return replace(tiles, depth=min(tiles.depth, BLOCK))
    return tiles


def _specs(batch: ExpertBatch, arrays: Any) -> Any:
    """Return the specs: each program sees all arrays whole, and its own tile of the tile map."""
    one_tile = pl.BlockSpec((None,), lambda _, tile: (jnp.maximum(tile - batch.shared_tiles, 0),))
    used = pl.BlockSpec((None,), lambda *_: (0,))
    order, *others = jax.tree.map(whole, arrays)
    return (TileMap(used, one_tile, one_tile, one_tile, order.order), *others)


def _as_input(result: Operand, format: QuantFormat | None) -> Operand:
    return result if in_passing(format) else activations(result.values, format)


def _as_operand(stack: Matrix, rows: Operand) -> Operand:
    """Return weights as an operand. Four-bit weights that the kernel unpacks become words."""
    weights = as_weight(stack)
    format = format_of(stack)
    if format is None or rows.values.dtype == jnp.uint8 or format.stored.bits != 4:
        return weights
    return Operand(as_words(weights.values), weights.scale)


def format_of(matrix: Matrix) -> QuantFormat | None:
    """Return the quantisation format of a matrix, None for plain weights."""
    return matrix.format if isinstance(matrix, QuantizedArray) else None
