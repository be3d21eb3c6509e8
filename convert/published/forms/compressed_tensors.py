"""INT4 of compressed-tensors, "pack-quantized": Kimi-K2.5 as released."""

import numpy as np

from convert.published.forms.form import FLOAT_SCALES, Form, ReadPart, finite_scale
from convert.published.nibbles import flip_offset_binary, words_to_pairs
from pallas_kernels.quantized.array import GROUP


def _part_shapes(shape: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    outputs, inputs = shape
    return {"weight_scale": ((outputs, inputs // GROUP),), "weight_shape": ((2,),)}


def _values(read: ReadPart) -> np.ndarray:
    shape, expected = read("weight_shape").tolist(), list(read.shape)
    if shape != expected:
        raise ValueError(f"weight_shape says {shape}, weight_packed holds {expected}")
    return flip_offset_binary(words_to_pairs(read("weight_packed"), "linear"))


INT4_GROUP = Form(
    label="INT4 of compressed-tensors (pack-quantized)",
    weights="int4_group",
    published_activations="none",
    parts={
        "weight_packed": ("I32",),
        "weight_scale": FLOAT_SCALES,
        "weight_shape": ("I32", "I64"),
    },
    optional={},
    values_per_word=8,
    part_shapes=_part_shapes,
    values=_values,
    scale=lambda read: finite_scale(read("weight_scale")),
)
