"""Fill an abstract Flax model: no random weights, one parameter at a time."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding

from eagle3_jax.layers.quantized import Frozen
from pallas_kernels import QuantFormat


class ParameterSource(Protocol):
    """Where values come from: a published checkpoint or a converted one."""

    @property
    def formats(self) -> Mapping[str, QuantFormat]: ...

    def check(self, paths: Collection[str], skip: Collection[str]) -> None: ...

    def load(
        self, path: str, dtype: np.dtype | None, shape: tuple[int, ...], sharding: Sharding | None
    ) -> jax.Array: ...


def fill(model: nnx.Module, source: ParameterSource, skip: Collection[str] = ()) -> None:
    """Gives every variable of an abstract model its value, one after the other: no more than one
    is in host memory.

    skip: submodules that the caller fills. Raises ValueError for a value that cannot be right.
    """
    for path, variable in named_variables(model, skip).items():
        variable.set_value(read_value(source, path, variable).block_until_ready())


def read_value(source: ParameterSource, path: str, variable: nnx.Variable[Any]) -> jax.Array:
    """One parameter in the dtype and shape of its abstract variable, where that says it belongs;
    ValueError for another."""
    abstract = variable.get_value()
    dtype = None if isinstance(variable, Frozen) else np.dtype(abstract.dtype)
    value = source.load(path, dtype, abstract.shape, abstract.sharding)
    if value.shape != abstract.shape:
        raise ValueError(f"{path}: expected shape {abstract.shape}, got {value.shape}")
    return value


def named_variables(model: nnx.Module, skip: Collection[str] = ()) -> dict[str, nnx.Variable[Any]]:
    """The model's own variables by dotted path, without the submodules in `skip`."""
    return {
        ".".join(map(str, path)): node
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.Variable) and str(path[0]) not in skip
    }


def shapes_of(model: nnx.Module, skip: Collection[str] = ()) -> dict[str, tuple[int, ...]]:
    """Path and shape of every parameter."""
    variables = named_variables(model, skip)
    return {path: variable.get_value().shape for path, variable in variables.items()}
