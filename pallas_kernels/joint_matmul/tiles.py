"""Which tiles the products with several weights run with."""

from collections.abc import Sequence
from dataclasses import replace

from pallas_kernels.fp8_matmul.tiles import dense_tiles, tuning_key
from pallas_kernels.tile_product import Operand, ProductTiles
from pallas_kernels.tuning import tuned


def joint_tiles(x: Operand, weights: Sequence[Operand]) -> ProductTiles:
    """The grid is as long as all weights side by side."""
    outputs = sum(w.outputs for w in weights)
    key = tuning_key(x, weights[0], outputs)
    return tuned("joint_matmul", key, dense_tiles(x, weights[0], outputs))


def gated_tiles(x: Operand, gate: Operand) -> ProductTiles:
    """A program has two sums, so half the columns of a tile of 128."""
    found = dense_tiles(x, gate, gate.outputs)
    found = replace(found, columns=min(found.columns, 64))
    return tuned("gated_matmul", tuning_key(x, gate, gate.outputs), found)
