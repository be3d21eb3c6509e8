"""GPU kernel of `logits_argmax`: each program finds the best id of a vocabulary tile; then merge.

min-p compares with the row's best logit, which no tile knows. A tile first compares with its own
best, which keeps too many ids and never too few. If its winner then fails against the row's best,
the tile runs again with that. This is rare; a program that need not run copies four numbers a row.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels.fp8_matmul.operands import as_rows, as_weight
from pallas_kernels.fp8_matmul.tiles import choose_tiles
from pallas_kernels.logits_argmax.options import ArgmaxOptions, AxisName, best_of
from pallas_kernels.logits_argmax.tile_choice import Found, choose_in_tile, holds_min_p
from pallas_kernels.quantized import Kernel
from pallas_kernels.tile_product import Operand, ProductTiles
from pallas_kernels.triton import launch, load, store


def launch_argmax(
    x: Array, head: Kernel, options: ArgmaxOptions, token_ids: Array, axis_name: AxisName
) -> tuple[Array, Array]:
    """Launch `logits_argmax`: the choice of each tile, a second run for min-p, and the merge."""
    operand, w = as_rows(x, head), as_weight(head)
    # The work after the product is paid once per tile.
    chosen = choose_tiles("logits_argmax", operand, w, least=64)
    run = functools.partial(_launch_tiles, operand, w, options, token_ids, chosen, x.dtype)
    found = run(None)
    if options.min_p is not None:
        peak = jnp.max(found.peaks, axis=1)
        peak = peak if axis_name is None else jax.lax.pmax(peak, axis_name)
        limits = {"peak": peak, "temperature": options.temperature, "min_p": options.min_p}
        holds = functools.partial(holds_min_p, **limits)
        again = holds(found.peaks) & ~holds(found.levels)
        found = run((peak, again.astype(jnp.int32), found))
        kept = holds(found.levels) | jnp.isnan(found.scores)
        found = found._replace(scores=jnp.where(kept, found.scores, -jnp.inf))
    return _merge_tiles(found.scores, found.ids)


def _launch_tiles(
    x: Operand,
    w: Operand,
    options: ArgmaxOptions,
    token_ids: Array,
    tiles: ProductTiles,
    dtype: Any,
    before: tuple[Array, Array, Found] | None,
) -> Found:
    rows, parts = x.values.shape[0], pl.cdiv(w.outputs, tiles.columns)
    of_min_p = () if options.min_p is None else (jnp.float32, jnp.float32)
    dtypes = (jnp.float32, jnp.int32, *of_min_p)
    found = launch(
        functools.partial(choose_in_tile, tiles=tiles, dtype=dtype),
        name="logits_argmax" if before is None else "logits_argmax_again",
        grid=(pl.cdiv(rows, tiles.rows), parts),
        out_shape=[jax.ShapeDtypeStruct((rows, parts), dtype) for dtype in dtypes],
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )(x, w, options, _used_biases(options), token_ids, before)
    return Found(*found)


def _used_biases(options: ArgmaxOptions) -> Int[Array, " rows"] | None:
    """Count each row's biases before the padding. If the kernel counted, the compiler would keep
    all biases in scratch memory at one row."""
    if options.bias_ids is None:
        return None
    counts = jnp.arange(1, options.bias_ids.shape[1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(options.bias_ids >= 0, counts, 0), axis=1)


def _merge_tiles(
    scores: Float[Array, "rows parts"], ids: Int[Array, "rows parts"]
) -> tuple[Float[Array, " rows"], Int[Array, " rows"]]:
    """Merge the best ids of a row's tiles, with one program for each row."""
    rows, parts = scores.shape
    by_row = pl.BlockSpec((1, parts), lambda row: (row, 0))
    one = pl.BlockSpec((1,), lambda row: (row,))
    best, chosen = launch(
        _merge_row,
        name="logits_argmax_merge",
        grid=(rows,),
        in_specs=[by_row, by_row],
        out_specs=[one, one],
        out_shape=[
            jax.ShapeDtypeStruct((rows,), jnp.float32),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
        ],
    )(scores, ids)
    return best, chosen


def _merge_row(scores: Any, ids: Any, best: Any, chosen: Any) -> None:
    """Kernel body: the best of a row's tiles.

    Grid: rows. Blocks: scores and ids [1, tiles], padded to a power of two, in registers. Limit:
    launches, not work. Units: scores are logits over temperature plus noise, float32; ids int32.
    """
    parts = scores.shape[1]
    part = jnp.arange(pl.next_power_of_2(parts))[None, :]
    index = (jnp.zeros_like(part), part)
    mask = part < parts
    found = best_of(
        load(scores.at[index], mask=mask, other=-jnp.inf), load(ids.at[index], mask=mask, other=0)
    )
    for out, value in zip((best, chosen), found, strict=True):
        store(out.at[jnp.zeros((1,), jnp.int32)], value)
