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
from pallas_kernels.tile_product import Operand, Tiles, products, store_tile
from pallas_kernels.triton import launch, whole


def matmul(x: Rows, kernel: QuantizedArray) -> Float[Array, "*rows outputs"]:
    """See `pallas_kernels.fp8_matmul.api.matmul`."""
    out = multiply(as_rows(x, kernel), as_weight(kernel), x.dtype)
    return out.reshape(*x.shape[:-1], -1)


def multiply(x: Operand, w: Operand, dtype: Any, chosen: Tiles | None = None) -> Array:
    """[rows, out] in this dtype; `chosen` overrides the tiles."""
    rows, outputs = x.values.shape[0], w.outputs
    chosen = chosen or tiles(x, w)
    return launch(
        functools.partial(_kernel, tiles=chosen),
        name="fp8_matmul",
        # Tiles of the same columns are neighbours: they share the weights.
        grid=(pl.cdiv(rows, chosen.rows), pl.cdiv(outputs, chosen.columns)),
        in_specs=jax.tree.map(whole, [x, w]),
        out_specs=whole(jax.ShapeDtypeStruct((rows, outputs), dtype)),
        out_shape=jax.ShapeDtypeStruct((rows, outputs), dtype),
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )(x, w)


def _kernel(x: Operand, w: Operand, out: Any, *, tiles: Tiles) -> None:
    rows = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)
    columns = pl.program_id(1) * tiles.columns + jnp.arange(tiles.columns)
    (total,) = products(x, [w], rows, columns, tiles.step)
    store_tile(out, rows, columns, total)
