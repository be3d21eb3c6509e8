"""What a form of quantised weights is: its tensors, how they are checked and what they become."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from convert.files.safetensors_files import TensorInfo
from pallas_kernels import QuantFormat
from pallas_kernels.quantized import ActivationFormat, WeightFormat


class ReadPart(Protocol):
    """Reads one of a weight's tensors by the last part of its name: of values and scales what lies
    in one box, of all others the whole. shape: of the whole matrix, [out, in]."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __call__(self, part: str) -> np.ndarray: ...

    def __contains__(self, part: object) -> bool: ...


Parts = Mapping[str, TensorInfo]
FLOAT_SCALES = ("F32", "BF16", "F16")


@dataclass(frozen=True, eq=False)
class Form:
    """One way to store a matrix [out, in] in several tensors.

    parts: last part of the name -> the dtypes it may have; the first one holds the values.
    optional: the same for tensors that may be absent. values_per_word: matrix columns that one
    element of the values tensor holds. part_shapes: expected shapes, given [out, in], of all
    other tensors. values, scale: read and rearrange, see `pallas_kernels.quantized.array`.
    published_activations: what the scheme's authors multiply with.
    """

    label: str
    weights: WeightFormat
    published_activations: ActivationFormat
    parts: Mapping[str, tuple[str, ...]]
    values_per_word: int
    part_shapes: Callable[[tuple[int, int]], Mapping[str, tuple[tuple[int, ...], ...]]]
    values: Callable[[ReadPart], np.ndarray]
    scale: Callable[[ReadPart], np.ndarray]
    optional: Mapping[str, tuple[str, ...]]

    @property
    def main(self) -> str:
        """The tensor that holds the values."""
        return next(iter(self.parts))

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

    def shape(self, parts: Parts) -> tuple[int, ...]:
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
        outputs, inputs = self.shape(parts)
        for part, allowed in self.part_shapes((outputs, inputs)).items():
            info = parts.get(part)
            if info is not None and info.shape not in allowed:
                shapes = " or ".join(map(str, allowed))
                found.append(f"{info.name}: expected shape {shapes}, got {info.shape}")
        return found

    def format(self, activations: ActivationFormat = "none") -> QuantFormat:
        """The static description that the arrays carry."""
        return QuantFormat(self.weights, activations)


def finite_scale(scale: np.ndarray) -> np.ndarray:
    """The scale itself. Raises ValueError when an entry is infinite or not a number."""
    if not np.isfinite(scale.astype(np.float32)).all():
        raise ValueError("the scales hold infinities or NaN")
    return scale
