"""Which tiles the choice over a vocabulary runs with."""

from dataclasses import replace

from pallas_kernels.fp8_matmul.tiles import dense_tiles, tuning_key
from pallas_kernels.tile_product import Operand, ProductTiles
from pallas_kernels.tuning import tuned


def tiles(x: Operand, w: Operand) -> ProductTiles:
    """At least 64 columns: what follows the product is paid once a tile."""
    found = dense_tiles(x, w, w.outputs)
    found = replace(found, columns=max(found.columns, 64))
    return tuned("logits_argmax", tuning_key(x, w, w.outputs), found)
