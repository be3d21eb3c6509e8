"""Fill an abstract Flax model from a checkpoint: no random weights, one parameter at a time."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from convert.rules import Plan, Rule, make_plan, read_parameter
from convert.safetensors_files import Checkpoint


def fill(
    model: nnx.Module,
    checkpoint: Checkpoint,
    rules: Sequence[Rule],
    canonical: Callable[[str], str],
    *,
    skip: Collection[str] = (),
) -> Plan:
    """Gives every variable of a model made by `nnx.eval_shape` its value from the checkpoint.

    `skip` names submodules that the caller fills. Raises ValueError listing every misfit, before
    anything is read.
    """
    variables = {
        path: variable
        for path, variable in named_variables(model).items()
        if path.split(".")[0] not in skip
    }
    shapes = {path: variable.get_value().shape for path, variable in variables.items()}
    plan = make_plan(checkpoint, rules, shapes, canonical=canonical)
    for path, variable in variables.items():
        dtype = np.dtype(variable.get_value().dtype)
        value = read_parameter(checkpoint, plan.sources[path], shapes[path], dtype)
        variable.set_value(jax.device_put(value))
    return plan


def named_variables(model: nnx.Module) -> dict[str, nnx.Variable[Any]]:
    """The model's own variables by dotted path."""
    return {
        ".".join(map(str, path)): node
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.Variable)
    }
