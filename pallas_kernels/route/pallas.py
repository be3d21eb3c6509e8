"""The router in one program: scores, choice, weights and tile map; others beside it quantise rows.

All tokens are seen at once, because where an expert's tiles lie depends on everyone's choice. The
map is made of comparisons of pairs, so that only the scores need many registers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.activations import row_kernel
from pallas_kernels.grouped_matmul.products import Operand
from pallas_kernels.grouped_matmul.tile_map import TileMap, most_tiles
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.route import reference
from pallas_kernels.route.choice import Choice, Routes
from pallas_kernels.row_kernel import row_block
from pallas_kernels.triton import launch, load, store, whole

MOST_TOKENS, MOST_EXPERTS = 64, 512
"""What the registers of one program hold."""


def route(
    logits: Float[Array, "tokens experts"],
    bias: Float[Array, " experts"],
    choice: Choice,
    x: Float[Array, "tokens hidden"] | None = None,
    format: QuantFormat | None = None,
) -> Routes:
    """See `pallas_kernels.route.api.route`; what is too much for one program is left to XLA."""
    (tokens, experts), top_k = logits.shape, choice.top_k
    if not fits(tokens, experts, top_k):
        return reference.route(logits, bias, choice)
    rows = row_tile(tokens, top_k, experts)
    tiles = (most_tiles(tokens * top_k, experts, rows),)
    int32 = partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    routes = (
        int32((tokens, top_k)),
        jax.ShapeDtypeStruct((tokens, top_k), jnp.float32),
        TileMap(int32((1,)), int32(tiles), int32(tiles), int32(tiles), int32((tokens * top_k,))),
    )
    beside = None if x is None else row_kernel(x, format)
    x, quantised = (None, None) if beside is None else (x, Operand(*beside.out))
    own_row = partial(row_block, row=lambda program: jnp.maximum(program - 1, 0))
    ids, weights, made, quantised = launch(
        partial(_kernel, choice=choice, tile_rows=rows, quantise=beside and beside.body),
        name="route",
        # The first program routes, each other one quantises a row.
        grid=(1 if beside is None else 1 + tokens,),
        in_specs=(whole(logits), whole(bias), jax.tree.map(own_row, x)),
        out_specs=(*jax.tree.map(whole, routes), jax.tree.map(own_row, quantised)),
        out_shape=(*routes, quantised),
        # 64 tokens: 128 VGPRs with 16 warps, 256 and more than 500 spilled with 8.
        num_warps=4 if tokens <= 8 else 16,
    )(logits, bias, x)
    return Routes(ids, weights, made, quantised)


def refusal(logits: Array) -> str | None:
    """Why the kernel cannot run on these."""
    return None if logits.dtype == jnp.float32 else f"expected float32 logits, got {logits.dtype}"


def fits(tokens: int, experts: int, top_k: int) -> bool:
    """Whether one program holds them."""
    return tokens <= MOST_TOKENS and experts <= MOST_EXPERTS and top_k in (1, 2, 4, 8)


def _kernel(
    logits: Any,
    bias: Any,
    x: Any,
    ids: Any,
    weights: Any,
    tiles: TileMap,
    rows: Any,
    *,
    choice: Choice,
    tile_rows: int,
    quantise: Callable[..., None] | None,
) -> None:
    def route() -> None:
        _route(logits, bias, ids, weights, tiles, choice, tile_rows)

    if quantise is None:
        route()
    else:
        # As two `pl.when` 64 tokens spill a register.
        jax.lax.cond(pl.program_id(0) == 0, route, lambda: quantise(x, *jax.tree.leaves(rows)))


def _route(
    logits: Any, bias: Any, ids: Any, weights: Any, tiles: Any, choice: Choice, tile_rows: int
) -> None:
    token = jnp.arange(pl.next_power_of_2(logits.shape[0]))[:, None]
    nth = jnp.arange(choice.top_k)[None, :]
    chosen = _choose(logits, bias, token, nth)
    inside = jnp.broadcast_to(token < logits.shape[0], chosen.shape)
    # Loaded again, not kept for all experts.
    scores = jax.nn.sigmoid(load(logits.at[token, chosen], mask=inside, other=0.0))
    total = jnp.sum(scores, axis=1)[:, None] + 1e-20 if choice.normalise else 1.0
    store(ids.at[token, nth], chosen, mask=inside)
    store(weights.at[token, nth], scores / total * choice.scaling, mask=inside)
    # Rows that are not there choose no expert that is.
    experts = logits.shape[1]
    _store_map(tiles, token, nth, jnp.where(inside, chosen, experts), experts, tile_rows)


def _choose(logits: Any, bias: Any, token: Array, nth: Array) -> Array:
    """Every token's experts, best first, [tokens, choices]."""
    tokens, experts = logits.shape
    expert = jnp.arange(pl.next_power_of_2(experts))[None, :]
    inside = (token < tokens) & (expert < experts)
    left = jax.nn.sigmoid(load(logits.at[token, expert], mask=inside, other=0.0))
    left += load(bias.at[expert], mask=expert < experts, other=0.0)
    # NaN counts as the lowest score, so that what is chosen is always an expert.
    lowest = float(jnp.finfo(jnp.float32).min)
    left = jnp.where(expert < experts, jnp.where(left > lowest, left, lowest), -jnp.inf)

    def add(n: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        left, chosen = state
        # The lower of equals.
        equal = left == jnp.max(left, axis=1)[:, None]
        best = jnp.min(jnp.where(equal, expert, expert.size), axis=1)[:, None]
        return jnp.where(expert == best, -jnp.inf, left), jnp.where(nth == n, best, chosen)

    none = jnp.zeros((token.size, nth.size), jnp.int32)
    return jax.lax.fori_loop(0, nth.size, add, (left, none))[1]


def _store_map(
    tiles: TileMap, token: Array, nth: Array, chosen: Array, experts: int, rows: int
) -> None:
    """`grouped_matmul.tile_map` of these choices: a choice of all tokens against all pairs."""
    expert, top_k = chosen.reshape(1, -1), nth.size
    pair = jnp.arange(expert.size)[None, :]

    def column(n: Array, values: Array) -> Array:
        return jnp.sum(jnp.where(nth == n, values, 0), axis=1)[:, None]

    def pairs_of(n: Array) -> tuple[Array, Array, Array]:
        """An expert of every token, which pairs have the same, and how many of these are before."""
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
        # Four counts of up to 511, 511, 64 and 63 in one sum: each would take the same registers.
        before = jnp.where(expert < own, 1 + (start << 9), 0)
        counts = _count(before + jnp.where(same, 1 << 18, 0) + jnp.where(earlier, 1 << 25, 0))
        rank, place = counts >> 25, (counts & 511) + (counts >> 25)
        tile, left = (counts >> 9 & 511) + rank // rows, (counts >> 18 & 127) - rank
        exists = own < experts
        first = (rank % rows == 0) & exists
        _scatter(tiles.order, place, token * top_k + n, exists)
        for array, value in ((tiles.expert, own), (tiles.first, place)):
            _scatter(array, tile, value, first)
        _scatter(tiles.rows, tile, jnp.minimum(left, rows), first)
        return _

    jax.lax.fori_loop(0, top_k, write, 0)
    store(tiles.used.at[jnp.arange(1)], _count(start)[0])


def _count(pairs: Array) -> Array:
    """The sum over all pairs."""
    return jnp.sum(pairs.astype(jnp.int32), axis=1)[:, None]


def _scatter(out: Any, place: Array, value: Array, mask: Array) -> None:
    # Interpreted, a masked store writes what was there: not to a place that is written.
    apart = jnp.where(mask, place, out.shape[0])
    store(out.at[apart], value, mask=mask)
