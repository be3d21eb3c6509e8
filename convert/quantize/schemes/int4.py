"""INT4: a scale for every output channel as AMD Quark writes it, or for every group of inputs."""

import ml_dtypes
import numpy as np

from convert.published.nibbles import flip_offset_binary, pack_pairs, pairs_to_words
from convert.quantize.schemes.quantizer import row_absmax
from pallas_kernels.quantized.array import GROUP

STEPS = np.float32(7.5)
"""Half the distance between the least and the largest of the sixteen values."""
LEAST_CHANNEL_SCALE = np.finfo(np.float32).eps
GROUP_SCALE_OF_ZEROS = ml_dtypes.finfo(ml_dtypes.bfloat16).eps


def encode_channels(weight: np.ndarray) -> dict[str, np.ndarray]:
    """The scale is rounded to the weight's dtype, the quotient is not."""
    values = weight.astype(np.float32)
    scale = (row_absmax(values) / STEPS).astype(weight.dtype).astype(np.float32)
    scale = np.maximum(scale, LEAST_CHANNEL_SCALE)
    words = pairs_to_words(pack_pairs(_rounded(values / scale[:, None])))
    return {"weight": words, "weight_scale": scale}


def encode_groups(weight: np.ndarray) -> dict[str, np.ndarray]:
    """All but `weight_shape`, which no slab of rows knows; the form of native Kimi-K2.5 experts.

    Unlike Quark's, the quotient is rounded to the weight's dtype before it becomes an integer.
    """
    groups = weight.astype(np.float32).reshape(len(weight), -1, GROUP)
    scale = (row_absmax(groups) / STEPS).astype(ml_dtypes.bfloat16)
    scale[scale == 0] = GROUP_SCALE_OF_ZEROS
    quotient = (groups / scale.astype(np.float32)[..., None]).astype(weight.dtype)
    pairs = pack_pairs(_rounded(quotient.astype(np.float32)).reshape(weight.shape))
    return {"weight_packed": pairs_to_words(flip_offset_binary(pairs)), "weight_scale": scale}


def _rounded(quotient: np.ndarray) -> np.ndarray:
    """Ties to even, clamped to -8..7."""
    return np.clip(np.rint(quotient), -8, 7).astype(np.int8)
