"""Safetensors files of arrays in memory."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from convert.save import write_tensors
from convert.store.parameters import Parameter


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes one file, tensors of one type by name."""
    named = sorted(tensors.items())
    write_tensors(path, [Parameter(n, t.shape, t.dtype, partial(np.asarray, t)) for n, t in named])
