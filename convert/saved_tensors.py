"""Turn parameters back into published tensors, each gathered when it is written."""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from flax import nnx

from convert.files.safetensors_files import DTYPES
from convert.fill import named_variables
from convert.models.rules import Layout, Rule, filled, split_row
from convert.store.parameter import Parameter

ReadArray = Callable[[str], np.ndarray]
KEPT = 2
"""Parameters kept in host memory: some tensors are made from two."""


def saved_tensors(
    rules: Sequence[Rule], shapes: Mapping[str, tuple[int, ...]], read: ReadArray, dtype: np.dtype
) -> list[Parameter]:
    """List the tensors of all parameters under their published names.

    `shapes` is by path. `read` returns one parameter by path. `dtype` is used if a rule states
    none.
    """
    tensors: list[Parameter] = []
    written: set[str] = set()
    for rule, path, values in filled(rules, shapes):
        stacked, _ = split_row(rule.paths[0])
        paths = [split_row(part)[1].format(**values) for part in rule.paths]
        written.update(paths)
        saved = DTYPES[rule.saved] if rule.saved else dtype
        shape = rule.layout.tensor_shape(*(shapes[p][1:] if stacked else shapes[p] for p in paths))
        for row in range(shapes[path][0]) if stacked else (None,):
            name = rule.name.format(**values, **({stacked: row} if stacked else {}))
            arranged = functools.partial(_arranged, rule.layout, paths, row, read, saved)
            tensors.append(Parameter(name, shape, saved, arranged))
    assert written == set(shapes), f"no rule saves {sorted(set(shapes) - written)}"
    return tensors


def host_reader(model: nnx.Module) -> ReadArray:
    """Return a function that copies a parameter of this process's devices to host memory.

    It caches KEPT copies. It raises ValueError if other processes hold parts of the parameter.
    """
    variables = named_variables(model)
    return functools.lru_cache(KEPT)(lambda path: _to_host(variables[path].get_value()))


def _arranged(
    layout: Layout, paths: Sequence[str], row: int | None, read: ReadArray, dtype: np.dtype
) -> np.ndarray:
    arrays = (read(path) if row is None else read(path)[row] for path in paths)
    return np.ascontiguousarray(layout.save(*arrays), dtype)


def _to_host(array: jax.Array) -> np.ndarray:
    """Copy an array to the host, via copies of its shards: JAX caches the host copy of an array."""
    if not array.is_fully_addressable:
        raise ValueError(
            "a model that lies on several processes can't be saved: load it in one process, or "
            "convert its checkpoint with eagle3-convert"
        )
    out = np.empty(array.shape, array.dtype)
    for part in array.addressable_shards:
        if part.replica_id == 0:
            out[part.index] = np.asarray(jax.device_put(part.data, part.device, may_alias=False))
    return out
