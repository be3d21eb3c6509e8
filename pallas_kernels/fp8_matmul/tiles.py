"""Which tiles dense products run with: those that compile without a spill (docs/kernels.md)."""

from pallas_kernels.quantized.array import BLOCK
from pallas_kernels.tile_product import Operand, Tiles


def tiles(x: Operand, w: Operand) -> Tiles:
    """For x times one weight."""
    return dense_tiles(x, w, w.outputs)


def dense_tiles(x: Operand, w: Operand, outputs: int) -> Tiles:
    """For `outputs` columns in one launch, of weights like w.

    Up to 64 rows the weights are read once and each program should have much of them on its way:
    16 KiB a step. The columns are few enough that 256 compute units have a program each.
    """
    rows, eight_bit = x.values.shape[0], x.values.dtype.itemsize == 1
    if rows > 64:
        return Tiles(128, 128, BLOCK if eight_bit else BLOCK // 2, warps=8)
    columns = 64 if outputs >= 16384 else 32 if outputs >= 4096 else 16
    step = BLOCK if w.scale is not None and w.scale.ndim == 2 else 256 if eight_bit else 128
    return Tiles(max(16, 1 << (rows - 1).bit_length()), columns, step)
