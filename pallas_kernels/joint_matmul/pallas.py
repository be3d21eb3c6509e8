"""The tiles of several weights in one grid: side by side, or gate and up in the same program."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.fp8_matmul.operands import as_rows, as_weight, refusal
from pallas_kernels.fp8_matmul.tiles import choose_tiles
from pallas_kernels.quantized import OneKernel, QuantizedArray
from pallas_kernels.rms_norm import Norm
from pallas_kernels.tile_product import Operand, ProductTiles, launch_tiles, products, store_tile
from pallas_kernels.triton import launch


def joint_matmul(
    x: Float[Array, "*rows inputs"], *kernels: OneKernel, norm: Norm | None = None
) -> tuple[Float[Array, "*rows _"], ...]:
    """See `pallas_kernels.joint_matmul.api.joint_matmul`."""
    operand, weights = as_rows(x, kernels[0], norm), [as_weight(kernel) for kernel in kernels]
    rows, outputs = operand.values.shape[0], [w.outputs for w in weights]
    # The grid is as long as all weights side by side.
    tiles = choose_tiles("joint_matmul", operand, weights[0], sum(outputs))
    outs = launch(
        functools.partial(_each, count=len(weights), tiles=tiles),
        name="joint_matmul",
        grid=(pl.cdiv(rows, tiles.rows), sum(pl.cdiv(size, tiles.columns) for size in outputs)),
        out_shape=[jax.ShapeDtypeStruct((rows, size), x.dtype) for size in outputs],
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )(operand, *weights)
    return tuple(out.reshape(*x.shape[:-1], -1) for out in outs)


def gated_matmul(
    x: Float[Array, "*rows inputs"], gate: OneKernel, up: OneKernel, *, norm: Norm | None = None
) -> Float[Array, "*rows outputs"]:
    """See `pallas_kernels.joint_matmul.api.gated_matmul`."""
    operands = as_rows(x, gate, norm), as_weight(gate), as_weight(up)
    # A program has two sums, so half the columns of a tile of 128.
    tiles = choose_tiles("gated_matmul", *operands[:2], most=64)
    out = launch_tiles(_gated, "gated_matmul", tiles, *operands, dtype=x.dtype)
    return out.reshape(*x.shape[:-1], -1)


def refusal_of_all(x: Array, kernels: Sequence[OneKernel]) -> str | None:
    """Why the kernels cannot run here."""
    if len({k.format if isinstance(k, QuantizedArray) else None for k in kernels}) > 1:
        return "expected kernels of one format, got several"
    return next(filter(None, (refusal(x, kernel) for kernel in kernels)), None)


def _each(x: Operand, *refs: Any, count: int, tiles: ProductTiles) -> None:
    """A tile of one weight's product; the first weight's tiles come first.

    Grid: tiles of rows x tiles of columns of all weights. Blocks: all arrays whole; a program
    multiplies [rows, step] with [columns, step] and sums float32 [rows, columns]. Limit: reading
    the weights, each once up to 64 rows. Units: scales are applied to the sums or, of blocks, to a
    step's part.
    """
    rows = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)
    tile = pl.program_id(1)
    for w, out in zip(refs[:count], refs[count:], strict=True):
        own = pl.cdiv(w.outputs, tiles.columns)

        @pl.when((tile >= 0) & (tile < own))
        def _(w: Operand = w, out: Any = out, tile: Array = tile) -> None:
            columns = tile * tiles.columns + jnp.arange(tiles.columns)
            (total,) = products(x, [w], rows, columns, tiles.step)
            store_tile(out, rows, columns, total)

        tile = tile - own


def _gated(x: Operand, gate: Operand, up: Operand, out: Any, *, tiles: ProductTiles) -> None:
    """A tile of silu(x gate) * (x up).

    Grid: tiles of rows x tiles of columns. Blocks: all arrays whole; two float32 sums [rows,
    columns], x read once. Limit: reading the weights, each once up to 64 rows; registers, two sums.
    Units: both products are rounded to the output's dtype before they are gated.
    """
    rows, columns = tiles.of_program()
    totals = products(x, [gate, up], rows, columns, tiles.step)
    # Rounded where two products and their gating round.
    gated, wide = (total.astype(out.dtype).astype(jnp.float32) for total in totals)
    gated = (gated * jax.lax.logistic(gated)).astype(out.dtype).astype(jnp.float32)
    store_tile(out, rows, columns, gated * wide)
