"""FP8 E4M3 with a scale for every output channel, byte for byte as AMD Quark 0.13 rounds."""

from dataclasses import dataclass

import numpy as np

from convert.quantize.schemes.e4m3 import FP8_MAX, to_e4m3
from convert.quantize.schemes.quantizer import Part, row_absmax

SCALE_OF_ZEROS = np.finfo(np.float32).eps


@dataclass(frozen=True)
class PtpcFp8:
    """`weight` F8_E4M3 [out, in] and `weight_scale` F32 [out]."""

    name: str = "ptpc_fp8"
    row_block: int = 1

    def parts(self, shape: tuple[int, ...]) -> dict[str, Part]:
        """Any shape fits."""
        return {"weight": Part("F8_E4M3", shape), "weight_scale": Part("F32", shape[:1])}

    def encode(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        """The division happens in the weight's own dtype, the stored scale does not."""
        values = weight.astype(np.float32)
        scale = row_absmax(values) / FP8_MAX
        scale[scale == 0] = SCALE_OF_ZEROS
        rounded = scale.astype(weight.dtype).astype(np.float32)
        # A row of float16 may be so small that its rounded scale is zero.
        divisor = np.where(rounded == 0, scale, rounded)
        quotient = (values / divisor[:, None]).astype(weight.dtype).astype(np.float32)
        return {"weight": to_e4m3(quotient), "weight_scale": scale}
