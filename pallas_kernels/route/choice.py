"""What a router decides, and how: the options of DeepSeek-V3's sigmoid router."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Array, Float, Int

from pallas_kernels.grouped_matmul.products import Operand
from pallas_kernels.grouped_matmul.tile_map import TileMap


class Routes(NamedTuple):
    """Chosen experts, their float32 weights, and what `grouped_mlp` needs if it is ready: its map,
    and the rows it multiplies, quantised."""

    expert_ids: Int[Array, "tokens top_k"]
    weights: Float[Array, "tokens top_k"]
    tiles: TileMap | None = None
    rows: Operand | None = None


@dataclass(frozen=True)
class Choice:
    """top_k: experts a token; normalise: weights sum to one; scaling: is multiplied to them."""

    top_k: int
    normalise: bool
    scaling: float
