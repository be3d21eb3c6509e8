"""A decoder of quantised weights in NumPy, independent of the loader's."""

from collections.abc import Mapping

import numpy as np

from convert.published.nibbles import flip_offset_binary, unpack_pairs, words_to_pairs
from convert.quantize.schemes import spread

FLOATS = ("float32", "bfloat16", "float16", "float64")
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def dequantize(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Dequantise the tensors of one weight, by the last component of their names, to float32.

    The form follows from names and dtypes; a lone tensor is only cast. Rows may be a slab that
    starts at a multiple of 128. Raises ValueError for an unknown form.
    """
    names = frozenset(parts) - {"weight_shape", "weight_zero_point"}
    if "weight_zero_point" in parts and parts["weight_zero_point"].any():
        raise ValueError("INT4 zero points other than zero can't be decoded")
    if len(names) == 1:
        return next(iter(parts.values())).astype(np.float32)
    if names == {"weight_packed", "weight_scale"}:
        pairs = flip_offset_binary(words_to_pairs(parts["weight_packed"], "linear"))
        scale = parts["weight_scale"]
        # compressed-tensors and its readers multiply in the scale's dtype.
        return _in_groups(_int4(pairs), scale).astype(scale.dtype).astype(np.float32)
    if names == {"weight", "weight_scale_inv"}:
        weight = parts["weight"].astype(np.float32)
        return weight * spread(parts["weight_scale_inv"], weight.shape)
    weight, scale = parts.get("weight"), parts.get("weight_scale")
    if weight is None or scale is None or names - {"weight", "weight_scale", "weight_scale_2"}:
        raise ValueError(f"no known form of a quantised weight has the tensors {sorted(parts)}")
    if "weight_scale_2" in names:
        progressive = _int4(words_to_pairs(weight, "awq")) * _column(parts["weight_scale_2"])
        return progressive * _column(scale)
    return _with_one_scale(weight, scale, awq="weight_zero_point" in parts)


def _with_one_scale(weight: np.ndarray, scale: np.ndarray, awq: bool) -> np.ndarray:
    match weight.dtype.name:
        case "uint8":
            exponents = scale.view(np.uint8).astype(np.int32) - 127
            return _in_groups(_E2M1[unpack_pairs(weight)], np.ldexp(np.float32(1), exponents))
        case "int32":
            # Only exports with zero points are in AWQ order, whatever the configuration states.
            return _int4(words_to_pairs(weight, "awq" if awq else "linear")) * _column(scale)
        case "float8_e4m3fn":
            return weight.astype(np.float32) * _column(scale)
    raise ValueError(f"no known form of a quantised weight holds {weight.dtype}")


def signed(nibbles: np.ndarray) -> np.ndarray:
    """Interpret nibbles 0..15 as two's complement, int8 -8..7."""
    return ((nibbles.astype(np.int8) ^ 8) - 8).astype(np.int8)


def _int4(pairs: np.ndarray) -> np.ndarray:
    return signed(unpack_pairs(pairs)).astype(np.float32)


def _column(scale: np.ndarray) -> np.ndarray:
    return scale.astype(np.float32).reshape(-1, 1)


def _in_groups(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    groups = values.reshape(*scale.shape, -1) * scale.astype(np.float32)[..., None]
    return groups.reshape(values.shape)
