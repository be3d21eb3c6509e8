"""x times float8 weights [out, in] as they are stored, scales applied to the sums."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.fp8_matmul.operands import as_rows, as_weight
from pallas_kernels.fp8_matmul.tiles import tiles
from pallas_kernels.quantized import QuantizedArray, Rows
from pallas_kernels.tile_product import Operand, ProductTiles, products, store_tile
from pallas_kernels.triton import launch, whole


def matmul(x: Rows, kernel: QuantizedArray) -> Float[Array, "*rows outputs"]:
    """See `pallas_kernels.fp8_matmul.api.matmul`."""
    out = multiply(as_rows(x, kernel), as_weight(kernel), x.dtype)
    return out.reshape(*x.shape[:-1], -1)


def multiply(x: Operand, w: Operand, dtype: Any) -> Array:
    """[rows, out] in this dtype."""
    rows, outputs, chosen = x.values.shape[0], w.outputs, tiles(x, w)
    return launch(
        functools.partial(_kernel, tiles=chosen),
        name="fp8_matmul",
        # ProductTiles of the same columns are neighbours: they share the weights.
        grid=(pl.cdiv(rows, chosen.rows), pl.cdiv(outputs, chosen.columns)),
        in_specs=jax.tree.map(whole, [x, w]),
        out_specs=whole(jax.ShapeDtypeStruct((rows, outputs), dtype)),
        out_shape=jax.ShapeDtypeStruct((rows, outputs), dtype),
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )(x, w)


def _kernel(x: Operand, w: Operand, out: Any, *, tiles: ProductTiles) -> None:
    """One tile of the product.

    Grid: tiles of rows x tiles of columns. Blocks: x and w whole; a program multiplies [rows, step]
    with [columns, step] and sums float32 [rows, columns]. Limit: reading weights, each once up to
    64 rows; registers beyond. Units: float8 times scales, applied to the sum or, of blocks, to each
    step's part.
    """
    rows = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)
    columns = pl.program_id(1) * tiles.columns + jnp.arange(tiles.columns)
    (total,) = products(x, [w], rows, columns, tiles.step)
    store_tile(out, rows, columns, total)
