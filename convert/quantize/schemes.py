"""The quantisation schemes of `--scheme`: the tensors that one weight becomes, and their values."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from convert.files.safetensors_files import TensorType
from convert.published.forms import FP8_BLOCK, FP8_CHANNEL, INT4_GROUP, INT4_LINEAR, MXFP4, Form
from convert.published.nibbles import flip_offset_binary, pack_pairs, pairs_to_words
from pallas_kernels.quantized.formats import BLOCK, E8M0_BIAS, GROUP

FP8_MAX = np.float32(448)
SCALE_OF_ZEROS = np.finfo(np.float32).eps
LEAST = FP8_MAX * np.finfo(np.float32).tiny
"""A block with a smaller largest magnitude has no finite scale, and is encoded as zeros."""
INT4_STEPS = np.float32(7.5)
"""Half the distance between the smallest and the largest of the sixteen values of INT4."""
LEAST_CHANNEL_SCALE = np.finfo(np.float32).eps
GROUP_SCALE_OF_ZEROS = ml_dtypes.finfo(ml_dtypes.bfloat16).eps
LARGEST_EXPONENT = 2
"""Exponent of E2M1's largest value, 6."""
QUARTER = 0x200000
"""Added to float32 bits, so that a mantissa of 1.75 or more carries into the exponent."""


@dataclass(frozen=True)
class Quantizer:
    """A quantiser of weights [out, in]; `name` is its spelling in `--scheme`.

    `encode` quantises finite rows in their published dtype. Multiples of `row_block` rows are
    independent, so a weight may be encoded in slabs, whose parts are concatenated. `unit` is the
    required divisor of the inputs, and the reason.
    """

    name: str
    form: Form
    encode: Callable[[np.ndarray], dict[str, np.ndarray]]
    unit: tuple[int, str] = (1, "any shape fits")
    row_block: int = 1
    scale_dtype: str = "F32"

    def parts(self, shape: tuple[int, ...]) -> dict[str, TensorType]:
        """Return one weight's tensors by name suffix; ValueError if its shape does not fit."""
        (outputs, inputs), (unit, why) = shape, self.unit
        if inputs % unit:
            raise ValueError(f"{why}, so its {inputs} inputs should be a multiple of {unit}")
        others = self.form.part_shapes(outputs, inputs)
        shapes = {part: allowed[0] for part, allowed in others.items()}
        shapes[self.form.main] = (outputs, inputs // self.form.values_per_word)
        return {
            part: TensorType(
                self.scale_dtype if part in self.form.scales else dtypes[0], shapes[part]
            )
            for part, dtypes in self.form.parts.items()
        }


def row_absmax(values: np.ndarray) -> np.ndarray:
    """Return the largest magnitude along the last axis: f32[..., n] -> f32[...]."""
    return np.abs(values).max(axis=-1)


def encode_fp8_channels(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise rows to E4M3, equal to the bytes of AMD Quark 0.13.

    Divides in the weight's own dtype, but stores the scale in float32.
    """
    values = weight.astype(np.float32)
    scale = row_absmax(values) / FP8_MAX
    scale[scale == 0] = SCALE_OF_ZEROS
    rounded = scale.astype(weight.dtype).astype(np.float32)
    # A row of float16 may be so small that its rounded scale is zero.
    divisor = np.where(rounded == 0, scale, rounded)
    quotient = (values / divisor[:, None]).astype(weight.dtype).astype(np.float32)
    return {"weight": to_e4m3(quotient), "weight_scale": scale}


def encode_fp8_blocks(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise blocks of 128 x 128 to E4M3 as transformers does.

    The first row begins a block; the last block of an axis may be smaller.
    """
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


def encode_int4_channels(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise rows to INT4 as AMD Quark does.

    The scale is rounded to the weight's dtype, the quotient is not.
    """
    values = weight.astype(np.float32)
    scale = (row_absmax(values) / INT4_STEPS).astype(weight.dtype).astype(np.float32)
    scale = np.maximum(scale, LEAST_CHANNEL_SCALE)
    words = pairs_to_words(pack_pairs(_rounded(values / scale[:, None])))
    return {"weight": words, "weight_scale": scale}


def encode_int4_groups(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise groups in the form of Kimi-K2.5's experts, without `weight_shape`.

    A slab of rows does not know `weight_shape`. Unlike Quark's, the quotient is rounded to the
    weight's dtype before it becomes an integer.
    """
    groups = weight.astype(np.float32).reshape(len(weight), -1, GROUP)
    scale = (row_absmax(groups) / INT4_STEPS).astype(ml_dtypes.bfloat16)
    scale[scale == 0] = GROUP_SCALE_OF_ZEROS
    quotient = (groups / scale.astype(np.float32)[..., None]).astype(weight.dtype)
    pairs = pack_pairs(_rounded(quotient.astype(np.float32)).reshape(weight.shape))
    return {"weight_packed": pairs_to_words(flip_offset_binary(pairs)), "weight_scale": scale}


def _rounded(quotient: np.ndarray) -> np.ndarray:
    """Round to integers, ties to even, clamped to -8..7."""
    return np.clip(np.rint(quotient), -8, 7).astype(np.int8)


def encode_mxfp4(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise rows to E2M1, with a power of two per 32 inputs by Quark's "even" rule.

    A group of zeros gets the smallest scale.
    """
    groups = weight.astype(np.float32).reshape(len(weight), -1, GROUP)
    scale = shared_exponents(row_absmax(groups))
    inverse = np.ldexp(np.float32(1), E8M0_BIAS - scale.astype(np.int32))
    codes = e2m1_codes(groups * inverse[..., None])
    return {"weight": pack_pairs(codes.reshape(weight.shape)), "weight_scale": scale}


def shared_exponents(absmax: np.ndarray) -> np.ndarray:
    """Return E8M0 bytes: the rounded exponent of the largest magnitude minus the exponent of 6."""
    rounded = absmax.view(np.uint32) + np.uint32(QUARTER)
    biased = (rounded >> np.uint32(23)).astype(np.int32) - LARGEST_EXPONENT
    return np.clip(biased, 0, 2 * E8M0_BIAS).astype(np.uint8)


def e2m1_codes(values: np.ndarray) -> np.ndarray:
    """Round f32 to E2M1 nibbles, ties to even, saturating at 6; there is no negative zero."""
    size = np.abs(values)
    code = (size > 0.25).astype(np.uint8)
    code += size >= 0.75
    code += size > 1.25
    code += size >= 1.75
    code += size > 2.5
    code += size >= 3.5
    code += size > 5
    return code | ((values < 0) & (code > 0)).astype(np.uint8) << 3


_WORD, _GROUP = (8, "eight INT4 values share a word"), (GROUP, f"{GROUP} inputs share a scale")
_SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Quantizer("ptpc_fp8", FP8_CHANNEL, encode_fp8_channels),
        Quantizer("int4", INT4_LINEAR, encode_int4_channels, _WORD),
        Quantizer("mxfp4", MXFP4, encode_mxfp4, _GROUP, scale_dtype="U8"),
        Quantizer("fp8_block", FP8_BLOCK, encode_fp8_blocks, row_block=BLOCK),
    )
}
_INT4_GROUPS = Quantizer("int4", INT4_GROUP, encode_int4_groups, _GROUP, scale_dtype="BF16")


def scheme_of(name: str, group_size: int | None = None) -> Quantizer:
    """Return a scheme; a group size turns `int4` into the compressed-tensors form."""
    if group_size is None:
        return _SCHEMES[name]
    if name != "int4":
        raise ValueError(f"--group-size belongs to --scheme int4, not to {name}")
    # Published checkpoints of the family use only this group size, and we load no other.
    if group_size != GROUP:
        raise ValueError(f"--group-size must be {GROUP}, got {group_size}")
    return _INT4_GROUPS
