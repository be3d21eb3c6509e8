"""Describe a quantiser: the tensors that one weight becomes, and their values."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from convert.files.safetensors_files import tensor_bytes
from convert.published.form import Form


@dataclass(frozen=True)
class Part:
    """One tensor to be written; `dtype` is safetensors' name."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor's data in bytes."""
        return tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True)
class Quantizer:
    """A quantiser of weights [out, in]; `name` is its spelling in `--scheme`.

    `encode` quantises finite rows in their published dtype. Multiples of `row_block` rows are
    independent, so a weight may be encoded in slabs, whose parts are concatenated. `unit` is the
    required divisor of the inputs, and the reason.
    """

    name: str
    form: Form
    encode: Callable[[np.ndarray], dict[str, np.ndarray]]
    unit: tuple[int, str] = (1, "any shape fits")
    row_block: int = 1
    scale_dtype: str = "F32"

    def parts(self, shape: tuple[int, ...]) -> dict[str, Part]:
        """Return one weight's tensors by name suffix; ValueError if its shape does not fit."""
        (outputs, inputs), (unit, why) = shape, self.unit
        if inputs % unit:
            raise ValueError(f"{why}, so its {inputs} inputs should be a multiple of {unit}")
        others = self.form.part_shapes(outputs, inputs)
        shapes = {part: allowed[0] for part, allowed in others.items()}
        shapes[self.form.main] = (outputs, inputs // self.form.values_per_word)
        return {
            part: Part(self.scale_dtype if part in self.form.scales else dtypes[0], shapes[part])
            for part, dtypes in self.form.parts.items()
        }


def row_absmax(values: np.ndarray) -> np.ndarray:
    """Return the largest magnitude along the last axis: f32[..., n] -> f32[...]."""
    return np.abs(values).max(axis=-1)
