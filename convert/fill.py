"""Fill an abstract Flax model: no random weights, one parameter at a time."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from convert.activations import Activations, choose_activations
from eagle3_jax.layers.quantized import Frozen, quantize_structure
from pallas_kernels import QuantFormat


class ParameterSource(Protocol):
    """Where values come from: a published checkpoint or a converted one."""

    @property
    def formats(self) -> Mapping[str, QuantFormat]: ...

    def check(self, paths: Collection[str], skip: Collection[str]) -> None: ...

    def read(self, path: str, dtype: np.dtype | None = None) -> np.ndarray: ...


def fill(
    model: nnx.Module, source: ParameterSource, activations: Activations, skip: Collection[str] = ()
) -> None:
    """Gives every variable of a model made by `nnx.eval_shape` its value.

    activations: what quantised weights multiply with. skip: submodules that the caller fills.
    Raises ValueError for a value that cannot be right.
    """
    quantize_structure(model, choose_activations(source.formats, activations))
    variables = named_variables(model, skip)
    source.check(variables, skip)
    for path, variable in variables.items():
        variable.set_value(read_value(source, path, variable))


def read_value(source: ParameterSource, path: str, variable: nnx.Variable[Any]) -> jax.Array:
    """One parameter in the dtype and shape of its abstract variable; ValueError for another."""
    abstract = variable.get_value()
    dtype = None if isinstance(variable, Frozen) else np.dtype(abstract.dtype)
    value = source.read(path, dtype)
    if value.shape != abstract.shape:
        raise ValueError(f"{path}: expected shape {abstract.shape}, got {value.shape}")
    return jax.device_put(value)


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
