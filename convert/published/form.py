"""What a form of quantised weights is: its tensors, how they are checked and what they become."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from convert.files.box import Box
from convert.files.safetensors_files import TensorInfo, read_box
from pallas_kernels.quantized import ActivationFormat, WeightFormat

Parts = Mapping[str, TensorInfo]
Shape = tuple[int, ...]
FLOAT_SCALES = ("F32", "BF16", "F16")
VALUES_PER_WORD = {"F8_E4M3": 1, "U8": 2, "I32": 8}
"""Matrix columns that one element of a values tensor holds, by its dtype."""


@dataclass(frozen=True)
class PartReader:
    """Reads one of a weight's tensors by the last part of its name: what lies in its box, or the
    whole. shape: of the whole matrix, [out, in]."""

    parts: Parts
    shape: Shape
    boxes: Mapping[str, Box]

    def __call__(self, part: str) -> np.ndarray:
        return read_box(self.parts[part], self.boxes.get(part))


@dataclass(frozen=True, eq=False)
class Form:
    """One way to store a matrix [out, in] in several tensors.

    parts: last part of the name -> the dtypes it may have; the first one holds the values.
    optional: the same for tensors that may be absent. part_shapes: expected shapes, given out and
    in, of all other tensors. values, scale: read and rearrange, see
    `pallas_kernels.quantized.array`. published_activations: what the scheme's authors multiply
    with.
    """

    label: str
    weights: WeightFormat
    published_activations: ActivationFormat
    parts: Mapping[str, tuple[str, ...]]
    part_shapes: Callable[[int, int], Mapping[str, tuple[Shape, ...]]]
    values: Callable[[PartReader], np.ndarray]
    scale: Callable[[PartReader], np.ndarray]
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The tensor that holds the values."""
        return next(iter(self.parts))

    @property
    def values_per_word(self) -> int:
        """Matrix columns that one element of the values tensor holds."""
        return VALUES_PER_WORD[self.parts[self.main][0]]

    @property
    def scales(self) -> tuple[str, ...]:
        """The tensors whose rows are those of the scale, or one number."""
        return tuple(part for part in self.parts if part.startswith("weight_scale"))

    def claims(self, parts: Parts) -> bool:
        """Whether the values tensor is of this form, whatever else may be missing."""
        info = parts.get(self.main)
        return info is not None and info.dtype in self.parts[self.main]

    def lacks(self, parts: Parts) -> list[str]:
        """Tensors of this form that are missing."""
        return [name for name in self.parts if name not in parts]

    def surplus(self, parts: Parts) -> list[str]:
        """Tensors that this form does not have."""
        return [name for name in parts if name not in {*self.parts, *self.optional}]

    def shape(self, parts: Parts) -> Shape:
        """[out, in] of the matrix."""
        *outer, last = parts[self.main].shape
        return (*outer, last * self.values_per_word)

    def misfits(self, parts: Parts) -> list[str]:
        """What is wrong with dtypes and shapes, from headers alone."""
        dtypes = {**self.parts, **self.optional}
        found = [
            f"{info.name}: dtype must be one of {dtypes[part]}, got {info.dtype}"
            for part, info in parts.items()
            if info.dtype not in dtypes[part]
        ]
        if len(parts[self.main].shape) != 2:
            info = parts[self.main]
            return [*found, f"{info.name}: expected [out, in], got shape {info.shape}"]
        for part, allowed in self.part_shapes(*self.shape(parts)).items():
            info = parts.get(part)
            if info is not None and info.shape not in allowed:
                shapes = " or ".join(map(str, allowed))
                found.append(f"{info.name}: expected shape {shapes}, got {info.shape}")
        return found
