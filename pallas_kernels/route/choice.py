"""What a router decides, and how: the options of DeepSeek-V3's sigmoid router."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Array, Float, Int

from pallas_kernels.grouped_matmul.tile_map import TileMap


class Routes(NamedTuple):
    """Chosen experts, their float32 weights, and the map of `grouped_mlp` if it is ready."""

    expert_ids: Int[Array, "tokens top_k"]
    weights: Float[Array, "tokens top_k"]
    tiles: TileMap | None


@dataclass(frozen=True)
class Choice:
    """top_k: experts a token; normalise: weights sum to one; scaling: is multiplied to them."""

    top_k: int
    normalise: bool
    scaling: float
