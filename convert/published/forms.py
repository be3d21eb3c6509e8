"""The supported forms of quantised weights, recognised by their tensors alone.

A form is one way to store a matrix [out, in] in the tensors of a checkpoint. Several forms may be
of one format in memory (`pallas_kernels.quantized.formats`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from convert.files.box import Box
from convert.files.safetensors_files import TensorInfo, read_box
from convert.published.nibbles import Int4Order, flip_offset_binary, words_to_pairs
from pallas_kernels.quantized import WEIGHT_FORMATS, ActivationFormat

Parts = Mapping[str, TensorInfo]
Shape = tuple[int, ...]
FLOAT_SCALES = ("F32", "BF16", "F16")
VALUES_PER_WORD = {"F8_E4M3": 1, "U8": 2, "I32": 8}
"""Matrix columns in one element of a values tensor, by its dtype."""


@dataclass(frozen=True)
class PartReader:
    """Reader of a weight's tensors by name suffix: the tensor's box, or all of it without one.

    `shape` is that of the matrix, [out, in].
    """

    parts: Parts
    shape: Shape
    boxes: Mapping[str, Box]

    def __call__(self, part: str) -> np.ndarray:
        return read_box(self.parts[part], self.boxes.get(part))


@dataclass(frozen=True, eq=False)
class Form:
    """One way to store a matrix [out, in] in several tensors.

    `weights` names the format in memory. `parts` maps the last part of a tensor's name to its
    allowed dtypes; the first tensor holds the values. `optional` is the same for tensors that may
    be absent. `part_shapes` returns the allowed shapes of the other tensors, given out and in.
    `values` and `scale` read and rearrange them. `published_activations` is the format that the
    scheme's authors use.
    """

    label: str
    weights: str
    published_activations: ActivationFormat
    parts: Mapping[str, tuple[str, ...]]
    part_shapes: Callable[[int, int], Mapping[str, tuple[Shape, ...]]]
    values: Callable[[PartReader], np.ndarray]
    scale: Callable[[PartReader], np.ndarray]
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """Name of the tensor that holds the values."""
        return next(iter(self.parts))

    @property
    def values_per_word(self) -> int:
        """Matrix columns in one element of the values tensor."""
        return VALUES_PER_WORD[self.parts[self.main][0]]

    @property
    def scales(self) -> tuple[str, ...]:
        """Tensors whose rows are those of the scale, or that hold a single number."""
        return tuple(part for part in self.parts if part.startswith("weight_scale"))

    def claims(self, parts: Parts) -> bool:
        """Return whether the values tensor has this form, even if other tensors are missing."""
        info = parts.get(self.main)
        return info is not None and info.dtype in self.parts[self.main]

    def lacks(self, parts: Parts) -> list[str]:
        """Return the missing tensors of this form."""
        return [name for name in self.parts if name not in parts]

    def surplus(self, parts: Parts) -> list[str]:
        """Return the tensors that this form does not have."""
        return [name for name in parts if name not in {*self.parts, *self.optional}]

    def distance(self, parts: Parts) -> int:
        """Return the number of tensors that are missing, surplus or of another dtype."""
        dtypes = {**self.parts, **self.optional}
        other = sum(info.dtype not in dtypes.get(part, ()) for part, info in parts.items())
        return other + len(self.lacks(parts))

    def shape(self, parts: Parts) -> Shape:
        """Return the matrix shape, [out, in]."""
        *outer, last = parts[self.main].shape
        return (*outer, last * self.values_per_word)

    def misfits(self, parts: Parts) -> list[str]:
        """Return errors in dtypes and shapes, from headers alone."""
        dtypes = {**self.parts, **self.optional}
        found = [
            f"{info.name}: dtype must be one of {dtypes[part]}, got {info.dtype}"
            for part, info in parts.items()
            if info.dtype not in dtypes[part]
        ]
        if len(parts[self.main].shape) != 2:
            info = parts[self.main]
            return [*found, f"{info.name}: expected [out, in], got shape {info.shape}"]
        (outputs, inputs), group = self.shape(parts), WEIGHT_FORMATS[self.weights].group
        if group is not None and inputs % group:
            expected = f"inputs in groups of {group}, which share a scale in {self.label}"
            return [*found, f"{parts[self.main].name}: expected {expected}; got {inputs} inputs"]
        for part, allowed in self.part_shapes(outputs, inputs).items():
            info = parts.get(part)
            if info is not None and info.shape not in allowed:
                shapes = " or ".join(map(str, allowed))
                found.append(f"{info.name}: expected shape {shapes}, got {info.shape}")
        return found


_FP8 = ("F8_E4M3",)
_E8M0_NAN = 0xFF


def _scale_shapes(weights: str, outputs: int, inputs: int) -> tuple[Shape, ...]:
    """Return the one shape of a scale that is stored as the format keeps it in memory."""
    return (WEIGHT_FORMATS[weights].scale_shape(outputs, inputs),)


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
    part_shapes=lambda *shape: {"weight_scale_inv": _scale_shapes("fp8_block", *shape)},
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
    part_shapes=lambda *shape: {
        "weight_scale": _scale_shapes("int4_group", *shape),
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
    part_shapes=lambda *shape: {"weight_scale": _scale_shapes("mxfp4", *shape)},
    values=lambda read: read("weight"),
    scale=_exponents,
)


def _nvfp4_scale(read: PartReader) -> np.ndarray:
    """Return a group's scale times the matrix's, of which compressed-tensors has the inverse."""
    scale = read("weight_scale").astype(np.float32)
    with np.errstate(all="ignore"):  # what is not finite is rejected below
        if "weight_scale_2" in read.parts:
            return _finite(scale * read("weight_scale_2").reshape(()))
        return _finite(scale / read("weight_global_scale").reshape(()))


def _nvfp4(label: str, values: str, matrix_scale: str, ignored: str) -> Form:
    """Return a form of NVFP4; `ignored` is the scale of activations, which stay as they are."""
    return Form(
        label=label,
        weights="nvfp4",
        published_activations="none",
        parts={values: ("U8",), "weight_scale": _FP8, matrix_scale: ("F32",)},
        optional={ignored: ("F32",)},
        part_shapes=lambda *shape: {
            "weight_scale": _scale_shapes("nvfp4", *shape),
            matrix_scale: ((), (1,)),
            ignored: ((), (1,)),
        },
        values=lambda read: read(values),
        scale=_nvfp4_scale,
    )


NVFP4 = _nvfp4("NVFP4 of ModelOpt", "weight", "weight_scale_2", "input_scale")
NVFP4_PACKED = _nvfp4(
    "NVFP4 of compressed-tensors (nvfp4-pack-quantized)",
    *("weight_packed", "weight_global_scale", "input_global_scale"),
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
FORMS = (INT4_GROUP, MXFP4, NVFP4, NVFP4_PACKED, W4A8, FP8_CHANNEL, FP8_BLOCK)
"""All forms except INT4 per channel, whose order of nibbles no file states."""
PARTS = frozenset(part for form in (*FORMS, INT4_LINEAR) for part in (*form.parts, *form.optional))
"""Last parts of the names of all tensors that a form may have."""
