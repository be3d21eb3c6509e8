"""FP8 weights: a scale for each output (Quark's ptpc_fp8) or for each 128 x 128 block."""

import numpy as np

from convert.published.forms.form import FLOAT_SCALES, Form, ReadPart, finite_scale
from pallas_kernels import QuantFormat

FP8 = ("F8_E4M3",)


def _values(read: ReadPart) -> np.ndarray:
    values = read("weight")
    if (values.view(np.uint8) & 0x7F == 0x7F).any():
        raise ValueError("the weights hold NaN")
    return values


def _channel_shapes(shape: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {"weight_scale": ((shape[0],), (shape[0], 1))}


def _block_shapes(shape: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {"weight_scale_inv": (QuantFormat("fp8_block").scale_shape(*shape),)}


FP8_CHANNEL = Form(
    label="FP8 per channel of Quark (ptpc_fp8)",
    weights="fp8_channel",
    published_activations="fp8_token",
    parts={"weight": FP8, "weight_scale": FLOAT_SCALES},
    optional={},
    values_per_word=1,
    part_shapes=_channel_shapes,
    values=_values,
    scale=lambda read: finite_scale(read("weight_scale")).reshape(-1).astype(np.float32),
)

FP8_BLOCK = Form(
    label="FP8 in 128x128 blocks",
    weights="fp8_block",
    published_activations="fp8_group",
    parts={"weight": FP8, "weight_scale_inv": ("F32",)},
    optional={},
    values_per_word=1,
    part_shapes=_block_shapes,
    values=_values,
    scale=lambda read: finite_scale(read("weight_scale_inv")),
)
