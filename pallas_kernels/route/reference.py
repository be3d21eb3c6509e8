"""The router, written plainly: the contract, and what runs where the kernel does not."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.grouped_matmul.tile_map import tile_map
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.route.choice import Held, RouterOptions, Routes


def route(
    logits: Float[Array, "tokens experts"],
    bias: Float[Array, " experts"],
    options: RouterOptions,
    x: Any = None,
    format: Any = None,
    held: Held | None = None,
) -> Routes:
    """See `pallas_kernels.route.api.route`."""
    held = held or Held(None, logits.shape[1])
    chosen = without_tiles(logits, bias, options, held=held)
    rows = row_tile(len(logits), options.top_k, held.experts)
    return chosen._replace(tiles=tile_map(chosen.expert_ids, held.experts, rows))


def without_tiles(
    logits: Float[Array, "tokens experts"],
    bias: Float[Array, " experts"],
    options: RouterOptions,
    x: Any = None,
    format: Any = None,
    held: Held | None = None,
) -> Routes:
    """The same where `grouped_mlp` needs no map, or makes its own."""
    scores = jax.nn.sigmoid(logits)
    _, expert_ids = jax.lax.top_k(scores + bias, options.top_k)
    weights = jnp.take_along_axis(scores, expert_ids, axis=-1)
    if options.normalise:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return Routes(held.own(expert_ids) if held else expert_ids, weights * options.scaling)
