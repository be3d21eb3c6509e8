"""Assignment of (token, choice) pairs to the row tiles of the experts' kernels.

Pairs are sorted by expert, and each expert's run is cut into tiles of a fixed number of rows, the
last of them partly empty. Experts that no token chose have no tile.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


class TileMap(NamedTuple):
    """Tile map as int32 arrays, or a kernel's refs of them.

    Attributes:
        used: [1], the number of tiles in use. Entries of later tiles are never read.
        expert, first, rows: [tiles], a tile's expert, its first index in `order`, its number of
            pairs.
        order: [tokens * top_k], the pairs, token * top_k + choice, by expert and then by token.
    """

    used: Any
    expert: Any
    first: Any
    rows: Any
    order: Any


def most_tiles(pairs: int, experts: int, rows: int) -> int:
    """Return an upper bound on the number of tiles: at most one tile per expert is not full."""
    return min(pairs, pairs // rows + experts)


def map_shapes(pairs: int, experts: int, rows: int) -> TileMap:
    """Return the shapes of a tile map of `pairs` pairs."""
    tiles = most_tiles(pairs, experts, rows)
    sizes = (1, tiles, tiles, tiles, pairs)
    return TileMap(*(jax.ShapeDtypeStruct((size,), jnp.int32) for size in sizes))


def tile_map(expert_ids: Int[Array, "tokens top_k"], experts: int, rows: int) -> TileMap:
    """Compute the tile map with XLA; the reference implementation for the kernel of `route`.

    Pairs with ids outside [0, experts) lie in no tile. They come last in `order`, where they are
    not read and a kernel need not write them.
    """
    chosen, expert = expert_ids.reshape(-1), jnp.arange(experts)
    chosen = jnp.where((chosen >= 0) & (chosen < experts), chosen, experts)
    counts = (chosen == expert[:, None]).sum(1)
    tiles_of = (counts + rows - 1) // rows
    ends, last = jnp.cumsum(tiles_of), jnp.cumsum(counts)
    tile = jnp.arange(most_tiles(chosen.size, experts, rows))
    expert_of = jnp.minimum((ends <= tile[:, None]).sum(1), experts - 1)
    taken = (tile - (ends - tiles_of)[expert_of]) * rows
    return TileMap(
        used=ends[-1:].astype(jnp.int32),
        expert=expert_of.astype(jnp.int32),
        first=((last - counts)[expert_of] + taken).astype(jnp.int32),
        rows=jnp.clip(counts[expert_of] - taken, 0, rows).astype(jnp.int32),
        order=jnp.argsort(chosen, stable=True).astype(jnp.int32),
    )
