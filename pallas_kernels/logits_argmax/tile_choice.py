"""Kernel body of `logits_argmax`: logits of one tile, options and noise, and the best id."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.logits_argmax.options import LAST_ID
from pallas_kernels.noise import gumbel
from pallas_kernels.tile_product import Operand, ProductTiles, clamp, products
from pallas_kernels.triton import load, store


class Found(NamedTuple):
    """Best score and id of each row and tile; with min-p also the id's logit and the best logit."""

    scores: Any
    ids: Any
    levels: Any = None
    peaks: Any = None


def holds_min_p(logits: Array, peak: Array, temperature: Array, min_p: Array) -> Array:
    """Return which logits [rows, n] pass min-p if the row's best logit is `peak` [rows]."""
    divisor = jnp.where(temperature > 0, temperature, 1.0)[:, None]
    return (logits - peak[:, None]) / divisor >= jnp.log(min_p)[:, None]


def choose_in_tile(
    x: Operand,
    w: Operand,
    options: Any,
    used: Any,
    token_ids: Any,
    before: tuple[Any, Any, Found] | None,
    *outs: Any,
    tiles: ProductTiles,
    dtype: Any,
) -> None:
    """Kernel body: write the `Found` of one tile.

    options: refs in the form of `ArgmaxOptions`. used: number of a row's biases before the padding,
    if there are any. before: None in the first run; then the row's best logit, a flag for tiles
    that must run again, and the `Found` of the first run.
    Grid: tiles of rows x tiles of the vocabulary. Blocks: all arrays whole; float32 [rows, columns]
    logits, never written. Limit: reading the head, once up to 64 rows; registers, 132. Units:
    logits and noise in nats.
    """
    rows, columns = tiles.of_program()
    part = jnp.full(rows.shape, pl.program_id(1))
    inside = rows < x.values.shape[0]
    row = clamp(rows, x.values.shape[0])

    def run() -> None:
        (total,) = products(x, [w], rows, columns, tiles)
        logits = total.astype(dtype).astype(jnp.float32)
        # A column past the last one repeats it or is zero.
        finite = jnp.sum(logits * 0, axis=1) == 0
        if w.outputs % tiles.columns:
            logits = jnp.where(columns < w.outputs, logits, -jnp.inf)
        ids = load(token_ids.at[clamp(columns, w.outputs)])
        peak = None if before is None else load(before[0].at[row])
        found = _best(logits, finite, ids, options, used, row, peak)
        for out, value in zip(outs, jax.tree.leaves(found), strict=True):
            store(out.at[rows, part], value, mask=inside)

    if before is None:
        run()
        return
    again = jnp.max(load(before[1].at[row, part])) > 0
    pl.when(again)(run)

    @pl.when(jnp.logical_not(again))
    def _() -> None:
        for out, value in zip(outs, before[2], strict=True):
            store(out.at[rows, part], load(value.at[row, part]), mask=inside)


def _best(
    logits: Array,
    finite: Array,
    ids: Array,
    options: Any,
    used: Any,
    row: Array,
    peak: Array | None,
) -> Found:
    """Choose among logits [rows, columns] of the given ids; `row` indexes the options."""
    logits = _add_bias(logits, ids, options, used, row)
    temperature = load(options.temperature.at[row])
    low, high = (load(options.seed.at[row, jnp.full(row.shape, word)]) for word in range(2))
    noise = gumbel(low, high, load(options.positions.at[row]), ids)
    # Scale the noise by the temperature, which avoids a division per logit. Greedy rows have no
    # noise.
    scores, peaks = logits + temperature[:, None] * noise, None
    if options.min_p is not None:
        peaks = jnp.max(logits, axis=1)
        least = load(options.min_p.at[row])
        holds = holds_min_p(logits, peaks if peak is None else peak, temperature, least)
        scores = jnp.where(holds, scores, -jnp.inf)
    best = jnp.max(scores, axis=1)
    lowest = jnp.min(jnp.where(scores == best[:, None], ids[None, :], LAST_ID), axis=1)
    best = jnp.where(finite, best / jnp.where(temperature > 0, temperature, 1.0), jnp.nan)
    if peaks is None:
        return Found(best, lowest)
    levels = jnp.max(jnp.where(ids[None, :] == lowest[:, None], logits, -jnp.inf), axis=1)
    return Found(best, lowest, levels, jnp.where(finite, peaks, jnp.nan))


def _add_bias(logits: Array, ids: Array, options: Any, used: Any, row: Array) -> Array:
    """Add biases, in as many steps as the tile's rows have biases before the padding."""
    if options.bias_ids is None:
        return logits
    bias_ids, bias = options.bias_ids, options.bias

    def add(index: Array, logits: Array) -> Array:
        one = jnp.full(row.shape, index)
        meant = load(bias_ids.at[row, one])[:, None] == ids[None, :]
        return logits + jnp.where(meant, load(bias.at[row, one])[:, None], 0.0)

    return jax.lax.fori_loop(0, jnp.max(load(used.at[row])), add, logits)
