"""Router kernel for few tokens: scores, choice, weights and tile map in a single program.

The program sees all tokens, because the place of an expert's tiles depends on every token's choice.
The map is computed by comparisons of pairs, so that only the scores need many registers.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.grouped_matmul.tile_map import TileMap, map_shapes
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.route.choice import Asked, RouterOptions, Routes, choice_shapes
from pallas_kernels.route.scores import choose_experts, launch_with_rows, load_first, store_choice
from pallas_kernels.triton import scatter, store

MOST_TOKENS, MOST_EXPERTS = 16, 512
"""Limits of the kernel: a compute unit runs a wave per token, so more tokens would wait."""


def fits(tokens: int, experts: int, top_k: int) -> bool:
    return tokens <= MOST_TOKENS and experts <= MOST_EXPERTS and top_k in (1, 2, 4, 8)


def route(asked: Asked) -> Routes:
    tokens, options, held = len(asked.logits), asked.options, asked.held.experts
    rows = row_tile(tokens, options.top_k, held)
    map_out = map_shapes(tokens * options.top_k, held, rows)
    (ids, weights, tiles), quantised = launch_with_rows(
        partial(_route, options=options, held=held, tile_rows=rows),
        asked,
        (*choice_shapes(tokens, options.top_k), map_out),
        programs=1,
        num_warps=4 if tokens <= 8 else 16,
    )
    return Routes(ids, weights, tiles, quantised)


def _route(
    _: Array, arrays: Any, out: Any, options: RouterOptions, held: int, tile_rows: int
) -> None:
    """Kernel body: choice, weights and tile map of all tokens.

    Grid: one program (others of the launch quantise rows). Blocks: everything whole: scores
    [tokens, experts] and pairs [tokens, tokens * top_k] in registers, 36 of them. Limit: latency,
    of the sequential choices and of the map after them. Units: logits float32; ids count from the
    first expert here.
    """
    (logits, bias, first), (ids, weights, tiles) = arrays, out
    token = jnp.arange(pl.next_power_of_2(logits.shape[0]))[:, None]
    chosen = choose_experts(logits, bias, token, options.top_k)
    start = load_first(first)
    store_choice(ids, weights, logits, chosen, options, start)
    own = chosen.first_choices(options.top_k) - start
    # Experts of other devices and of missing rows are mapped to one that does not exist.
    here = (token < logits.shape[0]) & (own >= 0) & (own < held)
    _store_map(tiles, token, jnp.where(here, own, held), held, tile_rows)


def _store_map(tiles: TileMap, token: Array, chosen: Array, experts: int, rows: int) -> None:
    """Compute `grouped_matmul.tile_map`, comparing a choice of all tokens with all pairs."""
    expert, top_k = chosen.reshape(1, -1), chosen.shape[1]
    nth, pair = jnp.arange(top_k)[None, :], jnp.arange(expert.size)[None, :]

    def column(n: Array, values: Array) -> Array:
        return jnp.sum(jnp.where(nth == n, values, 0), axis=1)[:, None]

    def pairs_of(n: Array) -> tuple[Array, Array, Array]:
        """Return every token's n-th expert, the pairs with it, and the earlier ones of these."""
        own = column(n, chosen)
        same = expert == own
        return own, same, same & (pair < token * top_k + n)

    def add_start(n: Array, starts: Array) -> Array:
        own, _, earlier = pairs_of(n)
        start = (_count(earlier) % rows == 0) & (own < experts)
        return jnp.where((nth == n) & start, 1, starts)

    start = jax.lax.fori_loop(0, top_k, add_start, jnp.zeros_like(chosen)).reshape(1, -1)

    def write(n: Array, _: Array) -> Array:
        own, same, earlier = pairs_of(n)
        # Pack four counts of up to 511, 511, 64 and 63 in one sum; each alone would take the same
        # registers.
        before = jnp.where(expert < own, 1 + (start << 9), 0)
        counts = _count(before + jnp.where(same, 1 << 18, 0) + jnp.where(earlier, 1 << 25, 0))
        rank, place = counts >> 25, (counts & 511) + (counts >> 25)
        tile, left = (counts >> 9 & 511) + rank // rows, (counts >> 18 & 127) - rank
        exists = own < experts
        first = (rank % rows == 0) & exists
        scatter(tiles.order, place, token * top_k + n, exists)
        for array, value in ((tiles.expert, own), (tiles.first, place)):
            scatter(array, tile, value, first)
        scatter(tiles.rows, tile, jnp.minimum(left, rows), first)
        return _

    jax.lax.fori_loop(0, top_k, write, 0)
    store(tiles.used.at[jnp.arange(1)], _count(start)[0])


def _count(pairs: Array) -> Array:
    return jnp.sum(pairs.astype(jnp.int32), axis=1)[:, None]
