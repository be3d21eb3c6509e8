"""Which tiles dense products run with: those that compile without a spill (docs/kernels.md)."""

from pallas_kernels.quantized.array import BLOCK
from pallas_kernels.tile_product import Operand, ProductTiles
from pallas_kernels.tuning import tuned


def choose_tiles(
    operation: str,
    x: Operand,
    w: Operand,
    outputs: int | None = None,
    *,
    least: int = 16,
    most: int = 128,
) -> ProductTiles:
    """For weights like w with so many outputs in one launch (None: those of w); a tile has `least`
    to `most` columns.

    Up to 64 rows the weights are read once and each program should have much of them on its way.
    The columns are few enough that 256 compute units have a program each.
    """
    (rows, inputs), outputs = x.values.shape, outputs or w.outputs
    eight_bit = x.values.dtype.itemsize == 1
    if rows > 64:
        heuristic = ProductTiles(128, most, BLOCK if eight_bit else BLOCK // 2, warps=8)
    else:
        rows = max(16, 1 << (rows - 1).bit_length())
        columns = 64 if outputs >= 16384 else 32 if outputs >= 4096 else 16
        step = 256 if eight_bit and not w.in_blocks else BLOCK
        heuristic = ProductTiles(rows, max(columns, least), step)
    weights = f"{w.values.dtype} {'blocks' if w.in_blocks else 'columns'}"
    key = f"rows {rows} inputs {inputs} outputs {outputs} {x.values.dtype} times {weights}"
    return tuned(operation, key, heuristic)
