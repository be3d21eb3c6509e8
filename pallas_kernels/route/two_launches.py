"""Many tokens in two launches: a program for a block of tokens, then one for an expert.

The first ones choose, and count how many of their tokens chose each expert. From these counts a
program of the second launch knows how many pairs and tiles come before those of its expert.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.grouped_matmul.tile_map import TileMap, map_shapes
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.route.choice import Asked, Held, RouterOptions, Routes, choice_shapes
from pallas_kernels.route.quantising_launch import launch_with_rows
from pallas_kernels.route.scores import choose_experts, load_first, store_choice
from pallas_kernels.triton import launch, load, scatter, store

MOST_EXPERTS = 4096
"""What the registers of a program hold of each token."""
_SCORES, _COUNTS = 8192, 4096
"""Scores of a block of tokens; counts that a program of the map sees at once."""
_TOKENS = 256
"""Whose choices it sees at once."""


def route(asked: Asked) -> Routes:
    """See `pallas_kernels.route.api.route`."""
    (tokens, experts), options = asked.logits.shape, asked.options
    block = min(16, _SCORES // pl.next_power_of_2(experts))
    blocks = pl.cdiv(tokens, block)
    (ids, weights, counts), quantised = launch_with_rows(
        partial(_choose, options=options, block=block),
        asked,
        (*choice_shapes(tokens, options.top_k), jax.ShapeDtypeStruct((blocks, experts), jnp.int32)),
        programs=blocks,
        num_warps=4,
    )
    return Routes(ids, weights, _tile_map(ids, counts, asked.held), quantised)


def _choose(program: Array, arrays: Any, out: Any, options: RouterOptions, block: int) -> None:
    """Choice and weights of a block of tokens, and how many of them chose each expert.

    Grid: blocks of at most 16 tokens (others of the launch quantise rows). Blocks: everything
    whole; scores [block, experts] in registers. Limit: registers, 144. Units: counts of tokens,
    int32.
    """
    (logits, bias, first), (ids, weights, counts) = arrays, out
    token = program * block + jnp.arange(block)[:, None]
    chosen = choose_experts(logits, bias, token, options.top_k)
    store_choice(ids, weights, logits, chosen, options, load_first(first))
    expert = jnp.arange(chosen.left.shape[1])
    taken = (chosen.left == -jnp.inf) & (token < logits.shape[0])
    store(
        counts.at[jnp.full(expert.shape, program), expert],
        jnp.sum(taken.astype(jnp.int32), axis=0),
        mask=expert < logits.shape[1],
    )


def _tile_map(ids: Array, counts: Array, held: Held) -> TileMap:
    """`grouped_matmul.tile_map` of these ids."""
    tokens, top_k = ids.shape
    rows = row_tile(tokens, top_k, held.experts)
    return launch(
        partial(_write_map, rows=rows),
        name="route_map",
        grid=(held.experts,),
        out_shape=map_shapes(tokens * top_k, held.experts, rows),
    )(ids, counts, held.first)


def _write_map(ids: Any, counts: Any, first: Any, *out: Any, rows: int) -> None:
    """The tiles and the pairs of one expert.

    Grid: experts held here. Blocks: everything whole; _COUNTS counts and the choices of _TOKENS
    tokens at a time. Limit: launches, not work: 36 registers. Units: places count pairs, tiles
    tiles.
    """
    tiles, held = TileMap(*out), pl.program_id(0)
    start = load_first(first)
    expert = jnp.arange(pl.next_power_of_2(counts.shape[1]))
    pairs = _total(counts, expert)
    tiles_of = (pairs + rows - 1) // rows
    before = (expert >= start) & (expert < start + held)
    place, tile = (jnp.sum(jnp.where(before, n, 0)) for n in (pairs, tiles_of))
    count = jnp.sum(jnp.where(expert == start + held, pairs, 0))
    used = tile + (count + rows - 1) // rows
    nth = jnp.arange(pl.next_power_of_2(pl.cdiv(ids.shape[0], rows)))
    exists, done = tile + nth < used, nth * rows
    scatter(tiles.expert, tile + nth, jnp.full(nth.shape, held), exists)
    scatter(tiles.first, tile + nth, place + done, exists)
    scatter(tiles.rows, tile + nth, jnp.minimum(count - done, rows), exists)
    # The last expert's program writes last.
    store(tiles.used.at[jnp.arange(1)], used[None], mask=(held == pl.num_programs(0) - 1)[None])
    _write_order(tiles.order, ids, held, place)


def _total(counts: Any, expert: Array) -> Array:
    """[experts]: how many tokens of all blocks chose each."""
    blocks, experts = counts.shape
    some = jnp.arange(min(pl.next_power_of_2(blocks), _COUNTS // expert.size))[:, None]

    def add(n: Array, total: Array) -> Array:
        block = n * some.size + some
        inside = (block < blocks) & (expert < experts)[None, :]
        return total + jnp.sum(load(counts.at[block, expert[None, :]], mask=inside, other=0), 0)

    return jax.lax.fori_loop(0, pl.cdiv(blocks, some.size), add, jnp.zeros_like(expert))


def _write_order(order: Any, ids: Any, expert: Array, place: Array) -> None:
    """The expert's pairs, by token."""
    tokens, top_k = ids.shape
    some = jnp.arange(min(pl.next_power_of_2(tokens), _TOKENS))
    nth = jnp.arange(pl.next_power_of_2(top_k))[None, :]

    def write(n: Array, place: Array) -> Array:
        token = n * some.size + some
        inside = (token < tokens)[:, None] & (nth < top_k)
        chose = load(ids.at[token[:, None], nth], mask=inside, other=-1) == expert
        once = jnp.sum(chose.astype(jnp.int32), axis=1)
        pair = token * top_k + jnp.sum(jnp.where(chose, nth, 0), axis=1)
        scatter(order, place + jnp.cumsum(once, axis=0) - 1, pair, once > 0)
        return place + jnp.sum(once)

    jax.lax.fori_loop(0, pl.cdiv(tokens, some.size), write, place)
