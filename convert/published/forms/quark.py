"""Quark's four-bit forms: MXFP4, INT4 per channel, and progressive INT4 (W4A8)."""

import numpy as np

from convert.published.forms.form import FLOAT_SCALES, Form, ReadPart, finite_scale
from convert.published.nibbles import Int4Order, words_to_pairs
from pallas_kernels.quantized.array import GROUP

_E8M0_NAN = 0xFF


def _exponents(read: ReadPart) -> np.ndarray:
    scale = read("weight_scale").view(np.uint8)
    if (scale == _E8M0_NAN).any():
        raise ValueError("the scales hold NaN (e8m0 byte 255)")
    return scale


def _mx_shapes(shape: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {"weight_scale": ((shape[0], shape[1] // GROUP),)}


MXFP4 = Form(
    label="MXFP4 of Quark",
    weights="mxfp4",
    published_activations="mxfp4",
    parts={"weight": ("U8",), "weight_scale": ("U8", "F8_E8M0")},
    optional={},
    values_per_word=2,
    part_shapes=_mx_shapes,
    values=lambda read: read("weight"),
    scale=_exponents,
)


def _progressive_shapes(shape: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {"weight_scale": ((), (1,)), "weight_scale_2": ((shape[0],), (shape[0], 1))}


def _progressive_scale(read: ReadPart) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is refused below
        scale = read("weight_scale_2").reshape(-1) * read("weight_scale").reshape(())
    return finite_scale(scale.astype(np.float32))


W4A8 = Form(
    label="progressive INT4 of Quark (W4A8)",
    weights="int4_channel",
    published_activations="int8_token",
    parts={"weight": ("I32",), "weight_scale": ("F32",), "weight_scale_2": ("F32",)},
    optional={},
    values_per_word=8,
    part_shapes=_progressive_shapes,
    values=lambda read: words_to_pairs(read("weight"), "awq"),
    scale=_progressive_scale,
)


def _int4_shapes(shape: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], ...]]:
    outputs = shape[0]
    return {
        "weight_scale": ((outputs,), (outputs, 1)),
        "weight_zero_point": ((outputs // 8,), (outputs // 8, 1)),
    }


def _int4(order: Int4Order) -> Form:
    def values(read: ReadPart) -> np.ndarray:
        if "weight_zero_point" in read and read("weight_zero_point").any():
            raise ValueError("only symmetric INT4 is supported, its zero points must all be 0")
        return words_to_pairs(read("weight"), order)

    return Form(
        label=f"INT4 per channel of Quark ({order} order)",
        weights="int4_channel",
        published_activations="none",
        parts={"weight": ("I32",), "weight_scale": FLOAT_SCALES},
        optional={"weight_zero_point": ("I32",)},
        values_per_word=8,
        part_shapes=_int4_shapes,
        values=values,
        scale=_symmetric_scale,
    )


def _symmetric_scale(read: ReadPart) -> np.ndarray:
    return finite_scale(read("weight_scale")).reshape(-1).astype(np.float32)


INT4_LINEAR = _int4("linear")
INT4_AWQ = _int4("awq")
