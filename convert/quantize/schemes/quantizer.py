"""Interface of the quantisers: the tensors that one weight becomes, and their values."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from convert.files.safetensors_files import tensor_bytes


@dataclass(frozen=True)
class Part:
    """One tensor to be written: dtype as safetensors names it, and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of its data in bytes."""
        return tensor_bytes(self.dtype, self.shape)


class Quantizer(Protocol):
    """A quantiser of weights [out, in].

    Rows are quantised independently in multiples of `row_block`, so a weight may be encoded a slab
    of rows at a time: the slabs' parts, one after the other, are the parts of the whole.
    """

    @property
    def name(self) -> str:
        """As `--scheme` spells it."""
        ...

    @property
    def row_block(self) -> int:
        """Rows that share a scale."""
        ...

    def parts(self, shape: tuple[int, ...]) -> dict[str, Part]:
        """The tensors of one weight by their names' last component; ValueError if none fit."""
        ...

    def encode(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        """Quantises finite rows in the dtype they are published in."""
        ...


def require_multiple(shape: tuple[int, ...], of: int, why: str) -> None:
    """Raises ValueError unless the inputs of a weight [out, in] divide."""
    if shape[1] % of:
        raise ValueError(f"{why}, so its {shape[1]} inputs should be a multiple of {of}")


def row_absmax(values: np.ndarray) -> np.ndarray:
    """Largest magnitude along the last axis: f32[..., n] -> f32[...]."""
    return np.abs(values).max(axis=-1)
