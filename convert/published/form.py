"""Describe a form of quantised weights: its tensors, their checks and their conversion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from convert.files.box import Box
from convert.files.safetensors_files import TensorInfo, read_box
from pallas_kernels.quantized import ActivationFormat

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

    `parts` maps the last part of a tensor's name to its allowed dtypes; the first tensor holds the
    values. `optional` is the same for tensors that may be absent. `part_shapes` returns the allowed
    shapes of the other tensors, given out and in. `values` and `scale` read and rearrange, see
    `pallas_kernels.quantized.formats`. `published_activations` is the format that the scheme's
    authors use.
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
        for part, allowed in self.part_shapes(*self.shape(parts)).items():
            info = parts.get(part)
            if info is not None and info.shape not in allowed:
                shapes = " or ".join(map(str, allowed))
                found.append(f"{info.name}: expected shape {shapes}, got {info.shape}")
        return found
