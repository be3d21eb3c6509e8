"""Router kernels for many tokens: one program per block of tokens, then one per expert.

The first launch chooses experts and counts how many tokens of each block chose each expert. From
the counts, an expert's program in the second launch finds how many pairs and tiles come before its
own.
"""

from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.grouped_matmul.tile_map import TileMap, map_shapes
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.route.choice import Asked, Held, RouterOptions, Routes, choice_shapes
from pallas_kernels.route.scores import (
    LANES,
    TAKEN,
    choose_experts,
    launch_with_rows,
    load_first,
    slices,
    store_choice,
)
from pallas_kernels.triton import launch, load, scatter, store

MOST_EXPERTS = 4096
"""Most experts whose scores a program's registers can hold."""
FIELD = 10
"""Bits of a count: three slices of experts share a word, for blocks of fewer than 1024 tokens."""
FIELDS = 32 // FIELD
_BLOCKS, _PAIRS = 32, 2048
"""Blocks and pairs that a program of the map processes at a time."""


def route(asked: Asked) -> Routes:
    (tokens, experts), options = asked.logits.shape, asked.options
    # One wave per token. Use as few tokens per program as make at most 16 blocks of counts.
    block = 4 if tokens <= 64 else 16
    words = pl.cdiv(pl.cdiv(experts, LANES), FIELDS)
    counts_of = jax.ShapeDtypeStruct((pl.cdiv(tokens, block), words * LANES), jnp.int32)
    (ids, weights, counts), quantised = launch_with_rows(
        partial(_choose, options=options, block=block),
        asked,
        (*choice_shapes(tokens, options.top_k), counts_of),
        programs=len(counts_of),
        num_warps=block,
    )
    return Routes(ids, weights, _tile_map(ids, counts, asked.held), quantised)


def _choose(program: Array, arrays: Any, out: Any, options: RouterOptions, block: int) -> None:
    """Kernel body: choice and weights of a block of tokens, and how many of them chose each expert.

    Grid: blocks of 4 or 16 tokens (others of the launch quantise rows). Blocks: everything whole;
    scores [block, 64] for each slice of experts in registers, a wave a token. Limit: latency, of
    two maxima over a wave for each choice. Units: counts of tokens, three to a word.
    """
    (logits, bias, first), (ids, weights, counts) = arrays, out
    token = program * block + jnp.arange(block)[:, None]
    chosen = choose_experts(logits, bias, token, options.top_k)
    store_choice(ids, weights, logits, chosen, options, load_first(first))
    for word in range(0, len(chosen.left), FIELDS):
        fields = [
            jnp.where((rank == TAKEN) & (token < logits.shape[0]), 1 << FIELD * place, 0)
            for place, rank in enumerate(chosen.left[word : word + FIELDS])
        ]
        column = word // FIELDS * LANES + jnp.arange(LANES)
        store(counts.at[jnp.full(LANES, program), column], jnp.sum(reduce(jnp.add, fields), axis=0))


def _tile_map(ids: Array, counts: Array, held: Held) -> TileMap:
    """Compute `grouped_matmul.tile_map` of these ids."""
    tokens, top_k = ids.shape
    rows = row_tile(tokens, top_k, held.experts)
    return launch(
        partial(_write_map, rows=rows),
        name="route_map",
        grid=(held.experts,),
        out_shape=map_shapes(ids.size, held.experts, rows),
        # A single wave waits for no other.
        num_warps=1 if ids.size <= 512 else 4,
    )(ids.reshape(-1), counts, held.first)


def _write_map(ids: Any, counts: Any, first: Any, *out: Any, rows: int) -> None:
    """Kernel body: the tiles and the pairs of one expert.

    Grid: experts held here. Blocks: everything whole; counts of _BLOCKS blocks and _PAIRS choices
    at a time. Limit: launches, not work: 64 registers. Units: places count pairs, tiles tiles.
    """
    tiles, held = TileMap(*out), pl.program_id(0)
    start = load_first(first)
    place, tile, count = _before(counts, start, held, rows)
    used = tile + (count + rows - 1) // rows
    nth = jnp.arange(pl.next_power_of_2(pl.cdiv(ids.shape[0], rows)))
    exists, done = tile + nth < used, nth * rows
    scatter(tiles.expert, tile + nth, jnp.full(nth.shape, held), exists)
    scatter(tiles.first, tile + nth, place + done, exists)
    scatter(tiles.rows, tile + nth, jnp.minimum(count - done, rows), exists)
    # Only the last expert's program knows the total.
    store(tiles.used.at[jnp.arange(1)], used[None], mask=(held == pl.num_programs(0) - 1)[None])
    _write_order(tiles.order, ids, held, place)


def _before(counts: Any, start: Array | int, held: Array, rows: int) -> tuple[Array, Array, Array]:
    """Return the pairs and tiles of this device's earlier experts, and the number of own pairs."""
    expert = [ids[0] - start for ids in slices(counts.shape[1] * FIELDS)]
    pairs = _totals(counts)

    def total(masks: list[Array], values: list[Array]) -> Array:
        kept = (jnp.where(mask, value, 0) for mask, value in zip(masks, values, strict=True))
        return jnp.sum(reduce(jnp.add, kept))

    before = [(ids >= 0) & (ids < held) for ids in expert]
    tiles = [(count + rows - 1) // rows for count in pairs]
    own = [ids == held for ids in expert]
    return total(before, pairs), total(before, tiles), total(own, pairs)


def _totals(counts: Any) -> list[Array]:
    """Return the number of tokens that chose each expert, by slice [64]."""
    blocks, columns = counts.shape
    some = jnp.arange(min(pl.next_power_of_2(blocks), _BLOCKS))[:, None]
    lane = jnp.arange(LANES)[None, :]

    def add(n: Array, totals: list[Array]) -> list[Array]:
        block = n * some.size + some
        words = [
            jnp.sum(load(counts.at[block, first + lane], mask=block < blocks, other=0), axis=0)
            for first in range(0, columns, LANES)
        ]
        fields = (
            word >> FIELD * place & (1 << FIELD) - 1 for word in words for place in range(FIELDS)
        )
        return [total + field for total, field in zip(totals, fields, strict=True)]

    zeros = [jnp.zeros(LANES, jnp.int32)] * (columns // LANES * FIELDS)
    return jax.lax.fori_loop(0, pl.cdiv(blocks, some.size), add, zeros)


def _write_order(order: Any, ids: Any, expert: Array, place: Array) -> None:
    """Store the expert's pairs in the order of tokens."""
    some = jnp.arange(min(pl.next_power_of_2(ids.shape[0]), _PAIRS))

    def write(n: Array, place: Array) -> Array:
        pair = n * some.size + some
        chose = load(ids.at[pair], mask=pair < ids.shape[0], other=-1) == expert
        once = chose.astype(jnp.int32)
        scatter(order, place + jnp.cumsum(once) - 1, pair, chose)
        return place + jnp.sum(once)

    jax.lax.fori_loop(0, pl.cdiv(ids.shape[0], some.size), write, place)
