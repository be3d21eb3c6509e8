"""Parameters back as a table's tensors, each gathered from its devices when it is written."""

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
"""Parameters in host memory: the two that some tensors are made of."""


def saved_tensors(
    rules: Sequence[Rule], shapes: Mapping[str, tuple[int, ...]], read: ReadArray, dtype: np.dtype
) -> list[Parameter]:
    """Parameters under the table's names, in `dtype` unless the rule fixes another.

    shapes: of all parameters. read: gives one by path; one after the other is asked for.
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
    """Gives a model's parameters by path, of any devices of this process, as copies in host memory
    of which it keeps the last few. Reading one that other processes hold parts of raises
    ValueError."""
    variables = named_variables(model)
    return functools.lru_cache(KEPT)(lambda path: _to_host(variables[path].get_value()))


def _arranged(
    layout: Layout, paths: Sequence[str], row: int | None, read: ReadArray, dtype: np.dtype
) -> np.ndarray:
    arrays = (read(path) if row is None else read(path)[row] for path in paths)
    return np.ascontiguousarray(layout.save(*arrays), dtype)


def _to_host(array: jax.Array) -> np.ndarray:
    """JAX keeps what was once fetched with the array it came from: copies are fetched, and go."""
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
