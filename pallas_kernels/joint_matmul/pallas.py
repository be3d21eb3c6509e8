"""GPU kernels of `joint_matmul` (weights side by side in one grid) and `gated_matmul`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.fp8_matmul.operands import as_rows, as_weight, refusal
from pallas_kernels.fp8_matmul.tiles import choose_tiles
from pallas_kernels.partial_sums import Product, as_product
from pallas_kernels.quantized import OneKernel, QuantizedArray
from pallas_kernels.rms_norm import Norm
from pallas_kernels.tile_product import Operand, ProductTiles, launch_tiles, products, store_tile


def joint_matmul(
    x: Float[Array, "*rows inputs"],
    *kernels: OneKernel,
    norm: Norm | None = None,
    in_parts: bool = False,
) -> tuple[Product, ...]:
    """Implement `pallas_kernels.joint_matmul.api.joint_matmul` as a GPU kernel."""
    operand, weights = as_rows(x, kernels[0], norm), [as_weight(kernel) for kernel in kernels]
    # The grid covers all weights side by side.
    outputs = [w.outputs for w in weights]
    tiles = choose_tiles("joint_matmul", operand, weights[0], sum(outputs), in_parts=in_parts)
    sums = launch_tiles(_each, "joint_matmul", tiles, operand, weights, outputs, x.dtype)
    return tuple(as_product(one, x.shape[:-1], x.dtype) for one in sums)


def gated_matmul(
    x: Float[Array, "*rows inputs"], gate: OneKernel, up: OneKernel, *, norm: Norm | None = None
) -> Float[Array, "*rows outputs"]:
    """Implement `pallas_kernels.joint_matmul.api.gated_matmul` as a GPU kernel."""
    operands = as_rows(x, gate, norm), as_weight(gate), as_weight(up)
    tiles = choose_tiles("gated_matmul", *operands[:2], weights=2)
    rows, *weights = operands
    outputs = [weights[0].outputs]
    (out,) = launch_tiles(_gated, "gated_matmul", tiles, rows, weights, outputs, x.dtype)
    return out.reshape(*x.shape[:-1], -1)


def refusal_of_all(x: Array, kernels: Sequence[OneKernel]) -> str | None:
    """Return why the kernels cannot run on these operands, or None if they can."""
    if len({k.format if isinstance(k, QuantizedArray) else None for k in kernels}) > 1:
        return "expected kernels of one format, got several"
    return next(filter(None, (refusal(x, kernel) for kernel in kernels)), None)


def _each(x: Operand, *refs: Any, tiles: ProductTiles) -> None:
    """Kernel body: a tile of one part of one weight's product; the first weight's tiles come first.

    Grid: tiles of rows x tiles of columns of all weights x parts of the inputs. Blocks: all arrays
    whole; a program multiplies [rows, step] with [columns, step] and sums float32 [rows, columns].
    Limit: reading the weights, each once up to 64 rows: one step's bytes of all programs are in
    flight. Units: scales are applied to the sums or, for blocks, to a step's sum.
    """
    rows = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)
    tile, part = pl.program_id(1), pl.program_id(2)
    count = len(refs) // 2
    for w, out in zip(refs[:count], refs[count:], strict=True):
        own = pl.cdiv(w.outputs, tiles.columns)

        @pl.when((tile >= 0) & (tile < own))
        def _(w: Operand = w, out: Any = out, tile: Array = tile) -> None:
            columns = tile * tiles.columns + jnp.arange(tiles.columns)
            (total,) = products(x, [w], rows, columns, tiles, part)
            store_tile(out, part, rows, columns, total)

        tile = tile - own


def _gated(x: Operand, gate: Operand, up: Operand, out: Any, *, tiles: ProductTiles) -> None:
    """Kernel body: a tile of silu(x gate) * (x up).

    Grid: tiles of rows x tiles of columns. Blocks: all arrays whole; two float32 sums [rows,
    columns], x read once. Limit: reading the weights, each once up to 64 rows; registers, two sums.
    Units: both products are rounded to the output's dtype before they are gated.
    """
    rows, columns = tiles.of_program()
    totals = products(x, [gate, up], rows, columns, tiles)
    # Round where two separate products and their gating would round.
    gated, wide = (total.astype(out.dtype).astype(jnp.float32) for total in totals)
    gated = (gated * jax.lax.logistic(gated)).astype(out.dtype).astype(jnp.float32)
    store_tile(out, pl.program_id(2), rows, columns, gated * wide)
