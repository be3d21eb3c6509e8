"""Models compared parameter by parameter: with each other, and a split one with a whole one."""

import re
from typing import Any

import jax
import numpy as np
from flax import nnx

from convert.fill import named_variables
from eagle3_jax.mesh import shard


def arrays_of(model: nnx.Module) -> dict[str, np.ndarray]:
    return {name: np.asarray(v.get_value()) for name, v in named_variables(model).items()}


def assert_same_weights(ours: nnx.Module, theirs: nnx.Module) -> None:
    """The same parameters of the same types, bit for bit."""
    found, expected = arrays_of(ours), arrays_of(theirs)
    assert set(found) == set(expected)
    for name, array in found.items():
        assert array.dtype == expected[name].dtype, name
        assert array.tobytes() == expected[name].tobytes(), name


def structure(model: nnx.Module) -> list[str]:
    """Modules, formats, axes and splits, without a mark of how a variable was made; what it says of
    itself in the order of the names."""
    text = str(nnx.graphdef(model)).replace("'eager_sharding': True,", "")
    return re.sub(r"PrettyMapping\(\{(.*?)\}\)", _in_order, text, flags=re.DOTALL).split()


def _in_order(mapping: re.Match[str]) -> str:
    return " ".join(sorted(line.strip(" ,") for line in mapping[1].splitlines()))


def assert_like_whole(ours: nnx.Module, whole: nnx.Module, mesh: jax.sharding.Mesh) -> None:
    """On every device what a whole model would leave there if it were split, bit for bit."""
    graph, state = nnx.split(whole)
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), state)
    split = nnx.merge(graph, shapes)
    shard(split, mesh)
    assert structure(ours) == structure(split)
    loaded, places = named_variables(ours), named_variables(split)
    for path, variable in named_variables(whole).items():
        value: Any = loaded[path].get_value()
        place: Any = places[path].get_value()
        expected = np.asarray(variable.get_value())
        assert (value.sharding, value.dtype) == (place.sharding, expected.dtype)
        for part in value.addressable_shards:
            assert np.asarray(part.data).tobytes() == expected[part.index].tobytes(), path
