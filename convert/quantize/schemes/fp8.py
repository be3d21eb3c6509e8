"""Encode FP8 E4M3 with a scale per output (equal to AMD Quark 0.13's bytes) or 128 x 128 block.

Blocks are as transformers makes them.
"""

import functools

import ml_dtypes
import numpy as np

from convert.quantize.schemes.quantizer import row_absmax
from pallas_kernels.quantized.formats import BLOCK

FP8_MAX = np.float32(448)
SCALE_OF_ZEROS = np.finfo(np.float32).eps
LEAST = FP8_MAX * np.finfo(np.float32).tiny
"""A block with a smaller largest magnitude has no finite scale, and is encoded as zeros."""


def encode_channels(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise rows; divides in the weight's own dtype, but stores the scale in float32."""
    values = weight.astype(np.float32)
    scale = row_absmax(values) / FP8_MAX
    scale[scale == 0] = SCALE_OF_ZEROS
    rounded = scale.astype(weight.dtype).astype(np.float32)
    # A row of float16 may be so small that its rounded scale is zero.
    divisor = np.where(rounded == 0, scale, rounded)
    quotient = (values / divisor[:, None]).astype(weight.dtype).astype(np.float32)
    return {"weight": to_e4m3(quotient), "weight_scale": scale}


def encode_blocks(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise blocks; the first row begins a block, the last block of an axis may be smaller."""
    values = weight.astype(np.float32)
    absmax = _blockwise_max(np.abs(values))
    nonzero = absmax >= LEAST
    scale = np.where(nonzero, 1 / np.where(nonzero, absmax, 1) * FP8_MAX, 1)
    scaled = values * spread(scale, values.shape)
    return {"weight": to_e4m3(scaled), "weight_scale_inv": 1 / scale}


def spread(blocks: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Repeat each block's value for every element of a matrix."""
    return blocks.repeat(BLOCK, axis=0)[: shape[0]].repeat(BLOCK, axis=1)[:, : shape[1]]


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """Round f32 to float8_e4m3fn by a table, ten times as fast as a cast.

    Rounds to nearest, ties to even, saturating at 448. The table's index is the upper half of a
    float32, with its last bit set if the lower half is not zero: it is on the same side of every
    tie.
    """
    bits = values.view(np.uint32)
    upper = (bits >> np.uint32(16)).astype(np.uint16)
    upper |= (bits & np.uint32(0xFFFF)) != 0
    return _table()[upper].view(ml_dtypes.float8_e4m3fn)


def _blockwise_max(values: np.ndarray) -> np.ndarray:
    rows = np.maximum.reduceat(values, range(0, values.shape[0], BLOCK), axis=0)
    return np.maximum.reduceat(rows, range(0, values.shape[1], BLOCK), axis=1)


@functools.cache
def _table() -> np.ndarray:
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    return (
        np.clip(np.nan_to_num(every), -FP8_MAX, FP8_MAX)
        .astype(ml_dtypes.float8_e4m3fn)
        .view(np.uint8)
    )
