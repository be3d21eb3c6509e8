"""Product of one tile of x's rows and weights' columns, summed over the inputs in steps.

Shared by the kernels for dense products. A row or column index past the end repeats the last one
(columns of plain weights count as zeros); kernels do not store these.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from pallas_kernels.quantized.formats import BLOCK
from pallas_kernels.triton import dot, launch, load, store


class Operand(NamedTuple):
    """An operand of a product: values and optional scales, as arrays or as a kernel's refs.

    In dense products, x [rows, in] has one scale for each row, or for each 128 inputs: [rows, in /
    128]. Weights with scales are float8 [out, in], with one scale for each column, [out], or for
    each block, [out / 128, in / 128]. Weights without scales are [in, out].
    """

    values: Any
    scale: Any = None

    @property
    def outputs(self) -> int:
        """Number of columns of a weight."""
        return self.values.shape[1 if self.scale is None else 0]

    @property
    def in_blocks(self) -> bool:
        """True if the scales change along the inputs."""
        return self.scale is not None and len(self.scale.shape) == 2


@dataclass(frozen=True)
class ProductTiles:
    """Tile sizes of a product: a program multiplies `rows` by `columns`, `step` inputs at a time.
    parts: parts of the inputs (split-K); with several, a launch writes a sum for each
    (`PartialSums`). ahead: steps prefetched into registers; with 0, Triton overlaps the loads."""

    rows: int
    columns: int
    step: int
    warps: int = 4
    stages: int = 2
    parts: int = 1
    ahead: int = 0

    def of_program(self) -> tuple[Array, Array]:
        """Return the row and column indices of this program's tile. Call inside a kernel."""
        rows = pl.program_id(0) * self.rows + jnp.arange(self.rows)
        return rows, pl.program_id(1) * self.columns + jnp.arange(self.columns)


def launch_tiles(
    kernel: Callable[..., None],
    name: str,
    tiles: ProductTiles,
    x: Operand,
    weights: Sequence[Operand],
    outputs: Sequence[int],
    dtype: DTypeLike,
) -> list[Array]:
    """Launch kernel(x, *weights, *out, tiles=) for each tile of each part. Returns [parts, rows,
    outputs] for each of `outputs`: in `dtype`, or in float32 if there are several parts."""
    rows = x.values.shape[0]
    dtype = dtype if tiles.parts == 1 else jnp.float32
    run = launch(
        partial(kernel, tiles=tiles),
        name=name,
        # Tiles of the same columns are adjacent in the grid because they share weights.
        grid=(
            pl.cdiv(rows, tiles.rows),
            sum(pl.cdiv(size, tiles.columns) for size in outputs),
            tiles.parts,
        ),
        out_shape=[jax.ShapeDtypeStruct((tiles.parts, rows, size), dtype) for size in outputs],
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return list(run(x, *weights))


def multiply_tile(x: Operand, w: Operand, out: Any, *, tiles: ProductTiles) -> None:
    """Kernel body: one tile of the product.

    Grid: tiles of rows x tiles of columns x parts of the inputs. Blocks: x and w whole; a program
    multiplies [rows, step] with [columns, step] and sums float32 [rows, columns]. Limit: reading
    the weights, each once up to 64 rows; registers beyond; launches for a router, which has 3 MiB.
    Units: float8 times scales, applied to the sum or, for blocks, to each step's sum; float32 is
    not rounded to TF32.
    """
    rows, columns = tiles.of_program()
    part = pl.program_id(2)
    (total,) = products(x, [w], rows, columns, tiles, part)
    store_tile(out, part, rows, columns, total)


def products(
    x: Operand,
    weights: Sequence[Operand],
    rows: Array,
    columns: Array,
    tiles: ProductTiles,
    part: Array | int = 0,
) -> list[Array]:
    """Return float32 [rows, columns] of x times each weight, for one part of the inputs.

    The weights share the column indices, and x is read once. Raises ValueError if a step is longer
    than a block of scales, or if the steps do not divide evenly into the parts.
    """
    step, parts = tiles.step, tiles.parts
    steps = -(-x.values.shape[1] // step)
    if weights[0].in_blocks and BLOCK % step:
        raise ValueError(f"expected a step that divides {BLOCK}, got {step}")
    if steps % parts:
        raise ValueError(f"expected parts of as many steps each, got {steps} steps in {parts}")

    def read(index: Array | int) -> _Step:
        index = part * (steps // parts) + index
        depth = index * step + jnp.arange(step)
        tile, group = _load_rows(x.values, rows, depth), index * step // BLOCK
        # Issue all loads before the first product, so that they wait for memory together.
        return _Step(tile, [_load_weight(w, depth, columns) for w in weights], group)

    def add(totals: list[Array], loaded: _Step) -> list[Array]:
        return [
            total + _part(loaded.rows, block, x, w, rows, columns, loaded.group)
            for total, block, w in zip(totals, loaded.blocks, weights, strict=True)
        ]

    zeros = [jnp.zeros((rows.size, columns.size), jnp.float32)] * len(weights)
    totals = _walk(steps // parts, tiles.ahead, read, add, zeros)
    return [_scale(total, x, w, rows, columns) for total, w in zip(totals, weights, strict=True)]


class _Step(NamedTuple):
    """Loaded operands of one step; `group` is the index of their scales."""

    rows: Array
    blocks: list[Array]
    group: Array | int


def _walk(
    steps: int,
    ahead: int,
    read: Callable[[Array | int], _Step],
    add: Callable[[list[Array], _Step], list[Array]],
    totals: list[Array],
) -> list[Array]:
    """Run all steps in order, prefetching `ahead` of them into registers as these get free."""
    if not ahead:
        return jax.lax.fori_loop(0, steps, lambda i, totals: add(totals, read(i)), totals)
    ahead = min(ahead, steps)
    trips, left = divmod(steps - 1, ahead)

    def trip(index: Array, carry: Any) -> Any:
        totals, loaded = carry
        after = []
        for number, one in enumerate(loaded):
            totals = add(totals, one)
            following = (index + 1) * ahead + number
            # Keep the last loads inside the loop: outside of it, each would be waited for
            # separately.
            after.append(
                read(following if left + 1 == ahead else jnp.minimum(following, steps - 1))
            )
        return totals, after

    carry = totals, [read(number) for number in range(ahead)]
    totals, loaded = jax.lax.fori_loop(0, trips, trip, carry)
    for one in loaded[: left + 1]:
        totals = add(totals, one)
    return totals


def store_tile(out: Any, part: Array, rows: Array, columns: Array, tile: Array) -> None:
    """Store the part of the tile that lies inside `out` [parts, rows, columns]."""
    index = (rows[:, None], columns[None, :])
    inside = (index[0] < out.shape[1]) & (index[1] < out.shape[2])
    store(out.at[jnp.broadcast_to(part, inside.shape), *index], tile.astype(out.dtype), mask=inside)


def clamp(indices: Array, limit: int) -> Array:
    """Clamp indices to the valid range: those past the last one repeat it."""
    return indices if limit % indices.size == 0 else jnp.minimum(indices, limit - 1)


def _part(
    part: Array,
    block: Array,
    x: Operand,
    w: Operand,
    rows: Array,
    columns: Array,
    group: Array | int,
) -> Array:
    """Return one step's product. Block scales, which change with the step, are applied here."""
    if w.scale is None:
        return dot(part.astype(w.values.dtype), block)
    total = dot(part, block if x.scale is not None else block.astype(part.dtype), trans_b=True)
    if not w.in_blocks:
        return total
    scale = load(w.scale.at[clamp(columns, w.outputs) // BLOCK, jnp.full(columns.shape, group)])
    if x.scale is None:
        return total * scale[None, :]
    own = load(x.scale.at[clamp(rows, x.values.shape[0]), jnp.full(rows.shape, group)])
    return total * own[:, None] * scale[None, :]


def _scale(total: Array, x: Operand, w: Operand, rows: Array, columns: Array) -> Array:
    """Multiply by the scales of whole rows and columns."""
    if x.scale is not None and not x.in_blocks:
        total = total * load(x.scale.at[clamp(rows, x.values.shape[0])])[:, None]
    if w.scale is not None and not w.in_blocks:
        total = total * load(w.scale.at[clamp(columns, w.outputs)])[None, :]
    return total


def _load_weight(w: Operand, depth: Array, columns: Array) -> Array:
    """Load [depth, columns] of a plain weight or [columns, depth] of one with scales."""
    if w.scale is None:
        return _load_columns(w.values, depth, columns)
    return _load_rows(w.values, columns, depth)


def _load_rows(ref: Any, rows: Array, depth: Array) -> Array:
    """Load [rows, depth] of an array with contiguous inputs."""
    index = (clamp(rows, ref.shape[0])[:, None], depth[None, :])
    if ref.shape[1] % depth.size == 0:
        return load(ref.at[index])
    mask = jnp.broadcast_to(index[1] < ref.shape[1], (rows.size, depth.size))
    return load(ref.at[index], mask=mask, other=0.0)


def _load_columns(ref: Any, depth: Array, columns: Array) -> Array:
    """Load [depth, columns] of an array with contiguous outputs."""
    index = (depth[:, None], columns[None, :])
    if ref.shape[0] % depth.size == 0 and ref.shape[1] % columns.size == 0:
        return load(ref.at[index])
    mask = (index[0] < ref.shape[0]) & (index[1] < ref.shape[1])
    return load(ref.at[index], mask=mask, other=0.0)
