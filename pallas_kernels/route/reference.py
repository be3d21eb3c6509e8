"""Reference implementation of `route` in plain JAX."""

import jax
import jax.numpy as jnp

from pallas_kernels.grouped_matmul.tile_map import tile_map
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.route.choice import Asked, Routes


def route(asked: Asked) -> Routes:
    """Reference implementation of `pallas_kernels.route.api.route`."""
    chosen, held = without_tiles(asked), asked.held.experts
    rows = row_tile(len(asked.logits), asked.options.top_k, held)
    return chosen._replace(tiles=tile_map(chosen.expert_ids, held, rows))


def without_tiles(asked: Asked) -> Routes:
    """Route without a tile map, for a `grouped_mlp` that needs none or computes it."""
    scores, options = jax.nn.sigmoid(asked.logits), asked.options
    _, expert_ids = jax.lax.top_k(scores + asked.bias, options.top_k)
    weights = jnp.take_along_axis(scores, expert_ids, axis=-1)
    if options.normalise:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return Routes(asked.held.own(expert_ids), weights * options.scaling)
