"""Quantise in one call, and compare directories tensor by tensor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.files.safetensors_files import Checkpoint, open_checkpoint
from convert.quantize.run import prepare, write
from convert.quantize.schemes import scheme_of


def quantized(
    source: Path, into: Path, scheme: str, group_size: int | None = None, **options: Any
) -> Checkpoint:
    """The checkpoint that `eagle3-quantize` writes."""
    write(prepare(source, into, scheme_of(scheme, group_size), **options))
    return open_checkpoint(into)


def contents(checkpoint: Checkpoint, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Dtype, shape and bytes of every tensor."""
    chosen = checkpoint.tensors if names is None else names
    return {
        name: (
            checkpoint.tensors[name].dtype,
            checkpoint.tensors[name].shape,
            checkpoint.read(name).tobytes(),
        )
        for name in chosen
    }


def weights(rows: int, columns: int, dtype: Any, seed: int = 0) -> np.ndarray:
    """Normally distributed, a row of zeros, a row of tiny values and a negative zero among them."""
    values = np.random.default_rng(seed).normal(0, 0.02, (rows, columns)).astype(np.float32)
    values[0] = 0
    values[1] *= 1e-4
    values[2, 0] = -0.0
    return values.astype(dtype)
