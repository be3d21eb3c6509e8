"""Fill an abstract Flax model with weights, without random initial values."""

import os
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from eagle3_jax.layers.quantized import Frozen
from pallas_kernels import QuantFormat

READERS = 4
"""Maximum number of parameters read at once, so that reads overlap with copies to devices."""


class ParameterSource(Protocol):
    """A source of parameter values: a published or a converted checkpoint."""

    @property
    def formats(self) -> Mapping[str, QuantFormat]: ...

    def check(self, paths: Collection[str], skip: Collection[str]) -> None: ...

    def stored_dtype(self, path: str) -> np.dtype: ...

    def load(
        self, path: str, dtype: np.dtype | None, shape: tuple[int, ...], sharding: Sharding | None
    ) -> jax.Array: ...


def fill(model: nnx.Module, source: ParameterSource, skip: Collection[str] = ()) -> None:
    """Set every variable of an abstract model, except in the submodules in `skip`.

    At most READERS parameters, one per core, are in host memory at a time. Raises ValueError for a
    value that cannot be right.
    """
    variables = named_variables(model, skip)

    def read(path: str) -> jax.Array:
        return read_value(source, path, variables[path]).block_until_ready()

    with ThreadPoolExecutor(min(READERS, os.cpu_count() or 1)) as readers:
        # After an error, `map` cancels the reads that have not started.
        for variable, value in zip(variables.values(), readers.map(read, variables), strict=True):
            variable.set_value(value)


def read_value(source: ParameterSource, path: str, variable: nnx.Variable[Any]) -> jax.Array:
    """Read a parameter as its abstract variable describes it; ValueError for another shape."""
    abstract = variable.get_value()
    dtype = None if isinstance(variable, Frozen) else np.dtype(abstract.dtype)
    value = source.load(path, dtype, abstract.shape, abstract.sharding)
    if value.shape != abstract.shape:
        raise ValueError(f"{path}: expected shape {abstract.shape}, got {value.shape}")
    return value


def named_variables(model: nnx.Module, skip: Collection[str] = ()) -> dict[str, nnx.Variable[Any]]:
    """Return the model's own variables by dotted path, without the submodules in `skip`."""
    return {
        ".".join(map(str, path)): node
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.Variable) and str(path[0]) not in skip
    }


def shapes_of(model: nnx.Module, skip: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by its path."""
    variables = named_variables(model, skip)
    return {path: variable.get_value().shape for path, variable in variables.items()}
