"""What a router decides, and how: the options of DeepSeek-V3's sigmoid router."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.tile_product import Operand


class Routes(NamedTuple):
    """Chosen experts, their float32 weights, and what `grouped_mlp` needs if it is ready: its map,
    and the rows it multiplies, quantised."""

    expert_ids: Int[Array, "tokens top_k"]
    weights: Float[Array, "tokens top_k"]
    tiles: TileMap | None = None
    rows: Operand | None = None


class Held(NamedTuple):
    """The experts of a device: the first of them, None where it has all, and how many."""

    first: Int[Array, "1"] | None
    experts: int

    def own(self, expert_ids: Int[Array, "*choices"]) -> Int[Array, "*choices"]:
        """Ids counted from the first."""
        return expert_ids if self.first is None else expert_ids - self.first


@dataclass(frozen=True)
class RouterOptions:
    """top_k: experts a token; normalise: weights sum to one; scaling: is multiplied to them."""

    top_k: int
    normalise: bool
    scaling: float


class Asked(NamedTuple):
    """What every implementation of `route` takes; see `api.route`."""

    logits: Float[Array, "tokens experts"]
    bias: Float[Array, " experts"]
    options: RouterOptions
    x: Float[Array, "tokens hidden"] | None
    format: QuantFormat | None
    held: Held


def choice_shapes(tokens: int, top_k: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Of ids and weights."""
    shape = (tokens, top_k)
    return jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, jnp.float32)
