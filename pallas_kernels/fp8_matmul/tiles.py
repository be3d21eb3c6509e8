"""Which tiles dense products run with: those that compile without a spill (docs/kernels.md)."""

from pallas_kernels.quantized.array import BLOCK
from pallas_kernels.tile_product import Operand, ProductTiles
from pallas_kernels.tuning import tuned


def tiles(x: Operand, w: Operand) -> ProductTiles:
    """For x times one weight."""
    return tuned("fp8_matmul", tuning_key(x, w, w.outputs), dense_tiles(x, w, w.outputs))


def dense_tiles(x: Operand, w: Operand, outputs: int) -> ProductTiles:
    """For `outputs` columns in one launch, of weights like w.

    Up to 64 rows the weights are read once and each program should have much of them on its way.
    The columns are few enough that 256 compute units have a program each.
    """
    rows, eight_bit = x.values.shape[0], x.values.dtype.itemsize == 1
    if rows > 64:
        return ProductTiles(128, 128, BLOCK if eight_bit else BLOCK // 2, warps=8)
    columns = 64 if outputs >= 16384 else 32 if outputs >= 4096 else 16
    return ProductTiles(_tile_rows(rows), columns, 256 if eight_bit and not w.in_blocks else BLOCK)


def tuning_key(x: Operand, w: Operand, outputs: int) -> str:
    """What a choice depends on; up to 64 rows the rows of the tile."""
    rows, inputs = x.values.shape
    rows = _tile_rows(rows) if rows <= 64 else rows
    weights = f"{w.values.dtype} {'blocks' if w.in_blocks else 'columns'}"
    return f"rows {rows} inputs {inputs} outputs {outputs} {x.values.dtype} times {weights}"


def _tile_rows(rows: int) -> int:
    return max(16, 1 << (rows - 1).bit_length())
