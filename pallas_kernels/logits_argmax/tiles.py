"""Which tiles the choice over a vocabulary runs with."""

from dataclasses import replace

from pallas_kernels.fp8_matmul.tiles import dense_tiles
from pallas_kernels.tile_product import Operand, Tiles


def tiles(x: Operand, w: Operand) -> Tiles:
    """At least 64 columns: what follows the product is paid once a tile."""
    found = dense_tiles(x, w, w.outputs)
    return replace(found, columns=max(found.columns, 64))
