"""GPU kernel of `matmul`: x times float8 weights [out, in] as stored, with scales on the sums."""

from jaxtyping import Array, Float

from pallas_kernels.fp8_matmul.operands import as_rows, as_weight
from pallas_kernels.fp8_matmul.tiles import choose_tiles
from pallas_kernels.quantized import QuantizedArray, Rows
from pallas_kernels.tile_product import launch_tiles, multiply_tile


def matmul(x: Rows, kernel: QuantizedArray) -> Float[Array, "*rows outputs"]:
    """Implement `pallas_kernels.fp8_matmul.api.matmul` as a GPU kernel."""
    rows, w = as_rows(x, kernel), as_weight(kernel)
    tiles = choose_tiles("fp8_matmul", rows, w)
    (out,) = launch_tiles(multiply_tile, "fp8_matmul", tiles, rows, [w], [w.outputs], x.dtype)
    return out.reshape(*x.shape[:-1], -1)
