"""Encode MXFP4: E2M1 values, with a power of two per 32 inputs chosen by Quark's "even" rule."""

import numpy as np

from convert.published.nibbles import pack_pairs
from convert.quantize.schemes.quantizer import row_absmax
from pallas_kernels.quantized.formats import GROUP

LARGEST_EXPONENT = 2
"""Exponent of E2M1's largest value, 6."""
QUARTER = 0x200000
"""Added to float32 bits, so that a mantissa of 1.75 or more carries into the exponent."""
BIAS = 127


def encode_mxfp4(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise rows; a group of zeros gets the smallest scale."""
    groups = weight.astype(np.float32).reshape(len(weight), -1, GROUP)
    scale = shared_exponents(row_absmax(groups))
    inverse = np.ldexp(np.float32(1), BIAS - scale.astype(np.int32))
    codes = e2m1_codes(groups * inverse[..., None])
    return {"weight": pack_pairs(codes.reshape(weight.shape)), "weight_scale": scale}


def shared_exponents(absmax: np.ndarray) -> np.ndarray:
    """Return E8M0 bytes: the rounded exponent of the largest magnitude minus the exponent of 6."""
    rounded = absmax.view(np.uint32) + np.uint32(QUARTER)
    biased = (rounded >> np.uint32(23)).astype(np.int32) - LARGEST_EXPONENT
    return np.clip(biased, 0, 2 * BIAS).astype(np.uint8)


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
