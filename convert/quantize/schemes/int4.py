"""Encode INT4 with a scale per output channel, as AMD Quark, or per group of inputs."""

import ml_dtypes
import numpy as np

from convert.published.nibbles import flip_offset_binary, pack_pairs, pairs_to_words
from convert.quantize.schemes.quantizer import row_absmax
from pallas_kernels.quantized.formats import GROUP

STEPS = np.float32(7.5)
"""Half the distance between the smallest and the largest of the sixteen values."""
LEAST_CHANNEL_SCALE = np.finfo(np.float32).eps
GROUP_SCALE_OF_ZEROS = ml_dtypes.finfo(ml_dtypes.bfloat16).eps


def encode_channels(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise rows; rounds the scale to the weight's dtype, but not the quotient."""
    values = weight.astype(np.float32)
    scale = (row_absmax(values) / STEPS).astype(weight.dtype).astype(np.float32)
    scale = np.maximum(scale, LEAST_CHANNEL_SCALE)
    words = pairs_to_words(pack_pairs(_rounded(values / scale[:, None])))
    return {"weight": words, "weight_scale": scale}


def encode_groups(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise groups in the form of Kimi-K2.5's experts, without `weight_shape`.

    A slab of rows does not know `weight_shape`. Unlike Quark's, the quotient is rounded to the
    weight's dtype before it becomes an integer.
    """
    groups = weight.astype(np.float32).reshape(len(weight), -1, GROUP)
    scale = (row_absmax(groups) / STEPS).astype(ml_dtypes.bfloat16)
    scale[scale == 0] = GROUP_SCALE_OF_ZEROS
    quotient = (groups / scale.astype(np.float32)[..., None]).astype(weight.dtype)
    pairs = pack_pairs(_rounded(quotient.astype(np.float32)).reshape(weight.shape))
    return {"weight_packed": pairs_to_words(flip_offset_binary(pairs)), "weight_scale": scale}


def _rounded(quotient: np.ndarray) -> np.ndarray:
    """Round to integers, ties to even, clamped to -8..7."""
    return np.clip(np.rint(quotient), -8, 7).astype(np.int8)
