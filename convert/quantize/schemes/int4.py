"""INT4: a scale for every output channel as AMD Quark writes it, or for every group of inputs."""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from convert.published.nibbles import flip_offset_binary, pack_pairs, pairs_to_words
from convert.quantize.schemes.quantizer import Part, require_multiple, row_absmax

STEPS = np.float32(7.5)
"""Half the distance between the least and the largest of the sixteen values."""
WORD = 8
LEAST_CHANNEL_SCALE = np.finfo(np.float32).eps
GROUP_SCALE_OF_ZEROS = ml_dtypes.finfo(ml_dtypes.bfloat16).eps


@dataclass(frozen=True)
class Int4Channel:
    """`weight` I32 [out, in / 8], two's complement, linear order; `weight_scale` F32 [out]."""

    name: str = "int4"
    row_block: int = 1

    def parts(self, shape: tuple[int, ...]) -> dict[str, Part]:
        """Eight inputs make a word."""
        require_multiple(shape, WORD, "eight INT4 values share a word")
        return {
            "weight": Part("I32", (shape[0], shape[1] // WORD)),
            "weight_scale": Part("F32", shape[:1]),
        }

    def encode(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        """The scale is rounded to the weight's dtype, the quotient is not."""
        values = weight.astype(np.float32)
        scale = (row_absmax(values) / STEPS).astype(weight.dtype).astype(np.float32)
        scale = np.maximum(scale, LEAST_CHANNEL_SCALE)
        words = pairs_to_words(pack_pairs(_rounded(values / scale[:, None])), "linear")
        return {"weight": words, "weight_scale": scale}


@dataclass(frozen=True)
class Int4Group:
    """Pack-quantized as compressed-tensors writes it, the form of the native Kimi-K2.5 experts.

    `weight_packed` I32 [out, in / 8], value + 8 in linear order; `weight_scale` BF16
    [out, in / group_size]; `weight_shape` I32 [2].
    """

    group_size: int = 32
    name: str = "int4"
    row_block: int = 1

    def parts(self, shape: tuple[int, ...]) -> dict[str, Part]:
        """Groups may not be ragged."""
        require_multiple(shape, self.group_size, f"{self.group_size} inputs share a scale")
        return {
            "weight_packed": Part("I32", (shape[0], shape[1] // WORD)),
            "weight_scale": Part("BF16", (shape[0], shape[1] // self.group_size)),
            "weight_shape": Part("I32", (2,)),
        }

    def encode(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        """All but `weight_shape`, which no slab of rows knows.

        Unlike Quark's, the quotient is rounded to the weight's dtype before it becomes an integer.
        """
        groups = weight.astype(np.float32).reshape(len(weight), -1, self.group_size)
        scale = (row_absmax(groups) / STEPS).astype(ml_dtypes.bfloat16)
        scale[scale == 0] = GROUP_SCALE_OF_ZEROS
        quotient = (groups / scale.astype(np.float32)[..., None]).astype(weight.dtype)
        pairs = pack_pairs(_rounded(quotient.astype(np.float32)).reshape(weight.shape))
        words = pairs_to_words(flip_offset_binary(pairs), "linear")
        return {"weight_packed": words, "weight_scale": scale}


def _rounded(quotient: np.ndarray) -> np.ndarray:
    """Ties to even, clamped to -8..7."""
    return np.clip(np.rint(quotient), -8, 7).astype(np.int8)
