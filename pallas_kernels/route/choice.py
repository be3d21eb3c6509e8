"""Inputs, options and results of the router."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.tile_product import Operand


class Routes(NamedTuple):
    """Chosen experts and float32 weights; optionally the tile map and the quantised rows that
    `grouped_mlp` takes."""

    expert_ids: Int[Array, "tokens top_k"]
    weights: Float[Array, "tokens top_k"]
    tiles: TileMap | None = None
    rows: Operand | None = None


class Held(NamedTuple):
    """Experts of one device: the first (None if it has all) and their number."""

    first: Int[Array, "1"] | None
    experts: int

    def own(self, expert_ids: Int[Array, "*choices"]) -> Int[Array, "*choices"]:
        """Return expert ids counted from this device's first expert."""
        return expert_ids if self.first is None else expert_ids - self.first


@dataclass(frozen=True)
class RouterOptions:
    """top_k: experts per token; normalise: weights sum to one; scaling: factor of the weights."""

    top_k: int
    normalise: bool
    scaling: float


class Asked(NamedTuple):
    """Arguments of every implementation of `route`; see ``route`."""

    logits: Float[Array, "tokens experts"]
    bias: Float[Array, " experts"]
    options: RouterOptions
    x: Float[Array, "tokens hidden"] | None
    format: QuantFormat | None
    held: Held


def choice_shapes(tokens: int, top_k: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Return the shapes of ids and weights."""
    shape = (tokens, top_k)
    return jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, jnp.float32)
