"""The supported forms of quantised weights, recognised by their tensors alone."""

import numpy as np

from convert.published.form import FLOAT_SCALES, Form, PartReader, Shape
from convert.published.nibbles import Int4Order, flip_offset_binary, words_to_pairs
from pallas_kernels.quantized import WEIGHT_FORMATS
from pallas_kernels.quantized.formats import GROUP

_FP8 = ("F8_E4M3",)
_E8M0_NAN = 0xFF


def _a_row(outputs: int) -> tuple[Shape, ...]:
    """Return the allowed shapes of a scale with one number per output."""
    return ((outputs,), (outputs, 1))


def _finite(scale: np.ndarray) -> np.ndarray:
    """Return the scale; ValueError if an entry is infinite or NaN."""
    if not np.isfinite(scale.astype(np.float32)).all():
        raise ValueError("the scales hold infinities or NaN")
    return scale


def _channel_scale(read: PartReader) -> np.ndarray:
    return _finite(read("weight_scale")).reshape(-1).astype(np.float32)


def _fp8_values(read: PartReader) -> np.ndarray:
    values = read("weight")
    if (values.view(np.uint8) & 0x7F == 0x7F).any():
        raise ValueError("the weights hold NaN")
    return values


FP8_CHANNEL = Form(
    label="FP8 per channel of Quark (ptpc_fp8)",
    weights="fp8_channel",
    published_activations="fp8_token",
    parts={"weight": _FP8, "weight_scale": FLOAT_SCALES},
    part_shapes=lambda outputs, _: {"weight_scale": _a_row(outputs)},
    values=_fp8_values,
    scale=_channel_scale,
)

FP8_BLOCK = Form(
    label="FP8 in 128x128 blocks",
    weights="fp8_block",
    published_activations="fp8_group",
    parts={"weight": _FP8, "weight_scale_inv": ("F32",)},
    part_shapes=lambda *shape: {
        "weight_scale_inv": (WEIGHT_FORMATS["fp8_block"].scale_shape(*shape),)
    },
    values=_fp8_values,
    scale=lambda read: _finite(read("weight_scale_inv")),
)


def _group_values(read: PartReader) -> np.ndarray:
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
    part_shapes=lambda outputs, inputs: {
        "weight_scale": ((outputs, inputs // GROUP),),
        "weight_shape": ((2,),),
    },
    values=_group_values,
    scale=lambda read: _finite(read("weight_scale")),
)


def _exponents(read: PartReader) -> np.ndarray:
    scale = read("weight_scale").view(np.uint8)
    if (scale == _E8M0_NAN).any():
        raise ValueError("the scales hold NaN (e8m0 byte 255)")
    return scale


MXFP4 = Form(
    label="MXFP4 of Quark",
    weights="mxfp4",
    published_activations="mxfp4",
    parts={"weight": ("U8",), "weight_scale": ("U8", "F8_E8M0")},
    part_shapes=lambda outputs, inputs: {"weight_scale": ((outputs, inputs // GROUP),)},
    values=lambda read: read("weight"),
    scale=_exponents,
)


def _progressive_scale(read: PartReader) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is rejected below
        scale = read("weight_scale_2").reshape(-1) * read("weight_scale").reshape(())
    return _finite(scale.astype(np.float32))


W4A8 = Form(
    label="progressive INT4 of Quark (W4A8)",
    weights="int4_channel",
    published_activations="int8_token",
    parts={"weight": ("I32",), "weight_scale": ("F32",), "weight_scale_2": ("F32",)},
    part_shapes=lambda outputs, _: {
        "weight_scale": ((), (1,)),
        "weight_scale_2": _a_row(outputs),
    },
    values=lambda read: words_to_pairs(read("weight"), "awq"),
    scale=_progressive_scale,
)


def _int4(order: Int4Order) -> Form:
    def values(read: PartReader) -> np.ndarray:
        if "weight_zero_point" in read.parts and read("weight_zero_point").any():
            raise ValueError("only symmetric INT4 is supported, its zero points must all be 0")
        return words_to_pairs(read("weight"), order)

    return Form(
        label=f"INT4 per channel of Quark ({order} order)",
        weights="int4_channel",
        published_activations="none",
        parts={"weight": ("I32",), "weight_scale": FLOAT_SCALES},
        optional={"weight_zero_point": ("I32",)},
        part_shapes=lambda outputs, _: {
            "weight_scale": _a_row(outputs),
            "weight_zero_point": _a_row(outputs // 8),
        },
        values=values,
        scale=_channel_scale,
    )


INT4_LINEAR = _int4("linear")
INT4_AWQ = _int4("awq")
