"""FP8 E4M3 with a scale for every block of 128 x 128, as transformers makes them."""

from dataclasses import dataclass

import numpy as np

from convert.quantize.schemes.e4m3 import FP8_MAX, to_e4m3
from convert.quantize.schemes.quantizer import Part

BLOCK = 128
LEAST = FP8_MAX * np.finfo(np.float32).tiny
"""A block whose largest magnitude is below has no finite scale; it counts as zeros."""


@dataclass(frozen=True)
class Fp8Block:
    """`weight` F8_E4M3 [out, in] and `weight_scale_inv` F32 [ceil(out / 128), ceil(in / 128)]."""

    name: str = "fp8_block"
    row_block: int = BLOCK

    def parts(self, shape: tuple[int, ...]) -> dict[str, Part]:
        """The last blocks of a row or column may be smaller."""
        blocks = tuple(-(-n // BLOCK) for n in shape)
        return {"weight": Part("F8_E4M3", shape), "weight_scale_inv": Part("F32", blocks)}

    def encode(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        """The first row is the first of a block."""
        values = weight.astype(np.float32)
        absmax = _blockwise_max(np.abs(values))
        nonzero = absmax >= LEAST
        scale = np.where(nonzero, 1 / np.where(nonzero, absmax, 1) * FP8_MAX, 1)
        scaled = values * spread(scale, values.shape)
        return {"weight": to_e4m3(scaled), "weight_scale_inv": 1 / scale}


def spread(blocks: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Gives every element of a matrix its block's value."""
    return blocks.repeat(BLOCK, axis=0)[: shape[0]].repeat(BLOCK, axis=1)[:, : shape[1]]


def _blockwise_max(values: np.ndarray) -> np.ndarray:
    rows = np.maximum.reduceat(values, range(0, values.shape[0], BLOCK), axis=0)
    return np.maximum.reduceat(rows, range(0, values.shape[1], BLOCK), axis=1)
