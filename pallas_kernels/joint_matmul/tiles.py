"""Which tiles the products with several weights run with."""

from collections.abc import Sequence
from dataclasses import replace

from pallas_kernels.fp8_matmul.tiles import dense_tiles
from pallas_kernels.tile_product import Operand, Tiles


def joint_tiles(x: Operand, weights: Sequence[Operand]) -> Tiles:
    """The grid is as long as all weights side by side."""
    return dense_tiles(x, weights[0], sum(w.outputs for w in weights))


def gated_tiles(x: Operand, gate: Operand) -> Tiles:
    """A program has two sums, so half the columns of a tile of 128."""
    found = dense_tiles(x, gate, gate.outputs)
    return replace(found, columns=min(found.columns, 64))
