"""Any tree of parameters is split into items without loss, small where it can be."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from convert.store.groups import group
from convert.store.parameter import Parameter

NAMES = st.sampled_from(["a", "b", "c", "0", "1", "model"])
TREES = st.recursive(
    st.integers(1, 50), lambda inner: st.dictionaries(NAMES, inner, min_size=1), max_leaves=30
)


def parameters(tree: object, *names: str) -> list[Parameter]:
    if isinstance(tree, dict):
        return [p for name, inner in tree.items() for p in parameters(inner, *names, name)]
    assert isinstance(tree, int)
    path = ".".join(names) or "alone"
    return [Parameter(path, (tree,), np.dtype(np.uint8), lambda: np.zeros(tree, np.uint8))]


@given(TREES, st.integers(1, 120))
def test_items_hold_every_parameter_once_and_stay_small(tree: object, limit: int) -> None:
    given_parameters = parameters(tree)
    items = group(given_parameters, limit)
    held = [parameter.path for item in items for parameter in item.parameters]
    assert sorted(held) == sorted(parameter.path for parameter in given_parameters)
    assert len({item.name for item in items}) == len(items)
    assert all(item.nbytes <= limit or len(item.parameters) == 1 for item in items)
